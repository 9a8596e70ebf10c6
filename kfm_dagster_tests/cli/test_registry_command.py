"""`kfm registry check` reports planted drift; `kfm dataset new --from-registry` drafts contracts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ExitCode
from kfm_dagster_tests.commands import Call

pytestmark = pytest.mark.clause("BEY-18")

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "nodd" / "registry"
HRRR = "arn:aws:sns:us-east-1:123901341784:NewHRRRObject"
MRMS = "arn:aws:sns:us-east-1:123901341784:NewMRMSObject"
OTHER = "arn:aws:sns:us-east-1:123901341784:NewOtherObject"
ENDED_TOPIC = "arn:aws:sns:us-east-1:123901341784:NewClosedFeed"
ENDED = "The feed will no longer be updated."
NODD = "NOAA data disseminated through NODD are open to the public and can be used as desired.<br/> <br/>NOAA requests"


def resource(arn: str, region: str = "us-east-1") -> dict[str, str]:
    return {"ARN": arn, "Region": region, "Type": "SNS Topic", "Description": "New data notifications"}


def entry(*arns: str, **keys: object) -> dict[str, Any]:
    return {"Name": "NOAA data", "License": NODD, "Resources": [resource(arn) for arn in arns], **keys}


def agreeing() -> dict[str, dict[str, Any]]:
    """Return an entry with topics and buckets for each contract, and two entries without a contract."""
    entries = {
        contract.id: entry(
            *(topic.arn for topic in contract.notifications.topics),
            *(f"arn:aws:s3:::{bucket}" for bucket in contract.storage.buckets),
            Name=f"{contract.metadata.title} ({contract.id.upper()})",
        )
        for contract in ContractRegistry.load()
    }
    return {**entries, "excepted": entry(OTHER), "foreign": entry(f"{OTHER}2", Name="Trees", License="ODbL")}


class Planted:
    """Entries and exceptions that agree with the contracts until a test changes them."""

    def __init__(self) -> None:
        self.entries = agreeing()
        self.exceptions: dict[str, Any] = {
            "version": "1.0.0",
            "untaken_topics": {OTHER: "no reader"},
            "unlisted_topics": {},
            "retirements": {},
        }

    def replace(self, name: str, old: str, new: str) -> None:
        self.entries[name] = json.loads(json.dumps(self.entries[name]).replace(old, new))

    def write(self, folder: Path) -> None:
        for file in folder.iterdir():
            file.unlink()
        for name, document in {**self.entries, "../registry-exceptions": self.exceptions}.items():
            (folder / f"{name}.yaml").write_text(json.dumps(document), encoding="utf-8")


Check = Callable[[Planted], list[Mapping[str, str]]]


@pytest.fixture
def check(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return a function that checks planted entries; the exit code must be 4 exactly if drift is reported."""
    monkeypatch.setenv("KFM_CONFIGS_DIR", str(tmp_path))
    folder = tmp_path / "datasets"
    folder.mkdir()

    def run(planted: Planted) -> list[Mapping[str, str]]:
        planted.write(folder)
        answer = call("registry", "check", str(folder), "--json")
        assert answer.code == (ExitCode.FINISHED_WITH_FAILURES if answer.rows else ExitCode.DONE)
        return answer.rows

    return run


DRIFTS: dict[str, tuple[Callable[[Planted], object], str, str]] = {
    "topic gone": (lambda at: at.replace("hrrr", HRRR, "arn:aws:other"), "topic-gone", HRRR),
    "topic in another account": (
        lambda at: at.replace("hrrr", "123901341784", "709902155096"),
        "topic-moved",
        HRRR,
    ),
    "topic in another region": (lambda at: at.replace("hrrr", "sns:us-east-1", "sns:us-west-2"), "topic-moved", HRRR),
    "topic with another letter": (lambda at: at.replace("hrrr", "NewHRRRO", "NewHRRO"), "topic-alike", HRRR),
    "topic of the same name": (
        lambda at: at.entries.update(new=entry(HRRR.replace("123901341784", "709902155096"))),
        "topic-alike",
        HRRR.replace("123901341784", "709902155096"),
    ),
    "topic that no contract takes": (
        lambda at: at.entries.update(new=entry(f"{OTHER}3")),
        "topic-untaken",
        f"{OTHER}3",
    ),
    "bucket gone": (
        lambda at: at.replace("mrms", "s3:::noaa-mrms-pds", "s3:::elsewhere"),
        "bucket-gone",
        "noaa-mrms-pds",
    ),
    "bucket with another letter": (
        lambda at: at.replace("mrms", "s3:::noaa-mrms-pds", "s3:::noaa-mrmz-pds"),
        "bucket-alike",
        "noaa-mrms-pds",
    ),
    "bucket in another region": (
        lambda at: at.replace("mrms", 'Region": "us-east-1', 'Region": "us-west-2'),
        "bucket-moved",
        "noaa-mrms-pds",
    ),
    "license of another name": (
        lambda at: at.entries["mrms"].update(License="[CC BY 4.0](https://x)"),
        "license-differs",
        "mrms",
    ),
    "license in other words": (lambda at: at.entries["mrms"].update(License="Ask us."), "license-differs", "mrms"),
    "license gone": (lambda at: at.entries["mrms"].update(License=None), "license-differs", "mrms"),
    "retired by its entry": (lambda at: at.entries["mrms"].update(Description=f"Rain. {ENDED}"), "retired", "mrms"),
    "retired by the update frequency": (lambda at: at.entries["mrms"].update(UpdateFrequency=ENDED), "retired", "mrms"),
    "retired by a resource": (
        lambda at: at.replace("mrms", "New data notifications", ENDED),
        "retired",
        "mrms",
    ),
    "deprecated": (lambda at: at.entries["mrms"].update(Deprecated=True), "retired", "mrms"),
    "retired by another entry that names its bucket": (
        lambda at: at.entries["excepted"].update(Description=f"From May on, [noaa-mrms-pds](https://x) {ENDED[9:]}"),
        "retired",
        "excepted",
    ),
    "retired by another entry that has its acronym": (
        lambda at: at.entries["excepted"].update(Description="A new set that replaces the old rain (MRMS)."),
        "retired",
        "excepted",
    ),
    "exception of a topic that a contract takes": (
        lambda at: at.exceptions["untaken_topics"].update({MRMS: "no reader"}),
        "exception-stale",
        MRMS,
    ),
    "exception of a topic in no entry": (
        lambda at: at.exceptions["untaken_topics"].update({f"{OTHER}4": "no reader"}),
        "exception-stale",
        f"{OTHER}4",
    ),
    "exception of a topic that is listed": (
        lambda at: at.exceptions["unlisted_topics"].update({MRMS: "no entry"}),
        "exception-stale",
        MRMS,
    ),
    "exception of a sentence in no entry": (
        lambda at: at.exceptions["retirements"].update({ENDED: "of a part"}),
        "exception-stale",
        ENDED,
    ),
}


def test_each_planted_drift_is_named_once(check: Check) -> None:
    named = {}
    for drift, (change, _, _) in DRIFTS.items():
        planted = Planted()
        change(planted)
        named[drift] = [(row["kind"], row["subject"]) for row in check(planted)]
    assert named == {drift: [(kind, subject)] for drift, (_, kind, subject) in DRIFTS.items()}


def test_the_text_output_has_a_line_for_each_drift(call: Call, check: Check, tmp_path: Path) -> None:
    planted = Planted()
    for drift in ("topic gone", "license of another name"):
        DRIFTS[drift][0](planted)
    rows = check(planted)
    *lines, total = call("registry", "check", str(tmp_path / "datasets")).out.splitlines()
    assert total.endswith("registry files: 2 differences")
    assert lines == [
        f"{row['kind']} {row['subject']}: {row['what']}; observed {row['observed']}; expected {row['expected']}; "
        f"next: {row['next_step']}"
        for row in rows
    ]


def test_agreeing_excepted_and_unrelated_entries_are_not_drift(
    check: Check,
) -> None:
    planted = Planted()
    assert check(planted) == []
    # These are no drift: sentences with similar words, and a sentence that the exceptions list.
    planted.entries["mrms"]["Description"] = "It introduced products, discontinued others. Values need to be replaced."
    planted.entries["gfs"]["Description"] = f"The old bucket is gone. {ENDED}"
    planted.exceptions["retirements"]["no longer be updated"] = "of the old bucket"
    # Nor is a contract's topic that the registry lacks, if the exceptions list it with a reason.
    planted.replace("hrrr", HRRR, "arn:aws:other")
    planted.exceptions["unlisted_topics"][HRRR] = "asked NODD"
    assert check(planted) == []


def test_the_end_of_a_retired_dataset_is_not_drift(
    call: Call, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    monkeypatch.setenv("KFM_CONTRACTS_DIR", str(contracts))
    draft = call("dataset", "new", "old", "--like", "hrrr", "--bucket", "old-pds", "--topic", ENDED_TOPIC).out
    planted = Planted()
    planted.entries["old"] = entry("arn:aws:s3:::old-pds", Description=ENDED)
    for status, kinds in (("", ["topic-gone", "retired"]), ("  status: retired\n", [])):
        retired = f"{status}  retired: {{since: 2026-11-03, reason: the model ended}}\n" if status else ""
        (contracts / "old.yaml").write_text(draft.replace("  labels:", f"{retired}  labels:"), encoding="utf-8")
        assert [row["kind"] for row in check(planted)] == kinds


def test_an_unreadable_registry_is_refused(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "none").mkdir()
    call("registry", "check", str(tmp_path / "none")).refused("the folder has no entries of the open-data registry")
    (tmp_path / "x.yaml").write_text("Name: [1]\n", encoding="utf-8")
    call("registry", "check", str(tmp_path)).refused("x.yaml line 1: Name is wrong; observed [1]")
    (tmp_path / "x.yaml").write_text("Name: x\n", encoding="utf-8")
    (tmp_path / "configs").mkdir()
    monkeypatch.setenv("KFM_CONFIGS_DIR", str(tmp_path / "configs"))
    (tmp_path / "configs" / "registry-exceptions.yaml").write_text("version: '1.0.0'\ntopics: {}\n", encoding="utf-8")
    call("registry", "check", str(tmp_path)).refused("registry-exceptions.yaml line 2: ", "unknown key 'topics'")


def test_a_contract_is_created_from_an_entry_of_the_registry(call: Call, tmp_path: Path) -> None:
    text = '## News <p>**Rapid** \\1 refresh: [RAP](https://x) is a "model".</p> Hourly.\n\n<br/> Since 2012. More.'
    entries = {
        "noaa-rap": entry(f"{OTHER}6", "arn:aws:s3:::noaa-rap-pds", Name="RAP", Description=text),
        "noaa-old": entry("arn:aws:s3:::noaa-old-pds"),
        "noaa-two": entry(f"{OTHER}7", f"{OTHER}8", "arn:aws:s3:::one", "arn:aws:s3:::two", License="[CC BY 4.0](x)"),
    }
    folder = tmp_path / "open-data-registry" / "datasets"
    folder.mkdir(parents=True)
    for name, document in entries.items():
        (folder / f"{name}.yaml").write_text(json.dumps(document).replace("us-east-1", "us-west-2"), "utf-8")
    begin = ("dataset", "new", "my-rap", "--like", "hrrr", "--out", "rap.yaml", "--from-registry")
    assert call(*begin, "noaa-rap").code == ExitCode.DONE
    contract = yaml.safe_load((tmp_path / "rap.yaml").read_text("utf-8"))
    assert contract["metadata"]["title"] == "RAP"
    assert contract["metadata"]["description"] == 'News Rapid \\1 refresh: RAP is a "model". Hourly. Since 2012.'
    assert (contract["storage"]["buckets"], contract["storage"]["region"]) == (["noaa-rap-pds"], "us-west-2")
    assert contract["notifications"]["topics"] == [{"arn": f"{OTHER}6".replace("us-east-1", "us-west-2")}]
    assert contract["governance"]["license"] == "CC0-1.0"
    assert call("dataset", "check", "rap.yaml").code == ExitCode.DONE
    assert not {"coverage", "virtual"} & contract.keys()
    (tmp_path / "rap.yaml").unlink()
    call(*begin, "noaa-two").refused(
        "the registry entry names several; observed one, two; next: choose one by --bucket"
    )
    call(*begin, "noaa-two", "--bucket", "two").refused("choose one by --topic")
    call(*begin, "rap").refused("no entry of that name; observed rap; expected noaa-rap")
    call(*begin, "noaa-rap", "--registry", "none").refused("'none' does not exist")
    assert not (tmp_path / "rap.yaml").exists()
    assert (
        call(*begin, "noaa-two", "--bucket", "two", "--topic", f"{OTHER}8".replace("east", "west")).code
        == ExitCode.DONE
    )
    contract = yaml.safe_load((tmp_path / "rap.yaml").read_text("utf-8"))
    assert (contract["storage"]["buckets"], contract["governance"]["license"]) == (["two"], "CC-BY-4.0")
    # If the entry has no topic, the drafted contract has the bucket listed at intervals.
    assert call(*begin[:6], "old.yaml", *begin[7:], "noaa-old").code == ExitCode.DONE
    contract = yaml.safe_load((tmp_path / "old.yaml").read_text("utf-8"))
    assert "topics" not in contract["notifications"]
    assert contract["storage"]["scheduled_listing"] == {"every_seconds": 86400, "days_back": 31}
    assert call("dataset", "check", "old.yaml").code == ExitCode.DONE


@pytest.mark.skipif(not SHARED.is_dir(), reason="no folder ../shared/nodd/registry beside the checkout")
def test_the_contracts_agree_with_the_registry(call: Call) -> None:
    answer = call("registry", "check", str(SHARED))
    assert answer.out.splitlines()[:-1] == []
    assert answer.code == ExitCode.DONE
