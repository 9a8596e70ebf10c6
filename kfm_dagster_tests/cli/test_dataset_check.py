"""`kfm dataset check --sample` reports for an object the result that an ingest would have."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path

import eccodes
import pytest

from kfm_dagster.contracts.loader import ContractRegistry, draft, parse_contract
from kfm_dagster.demo.samples.hrrr import hrrr_samples
from kfm_dagster.demo.samples.ndfd import ndfd_samples
from kfm_dagster.errors import ExitCode
from kfm_dagster_tests.cli.test_cli import CHECKED, TOPIC
from kfm_dagster_tests.commands import Answer, Call

DAY = date(2025, 4, 2)
Change = Callable[[str], str]


@pytest.fixture
def contract(tmp_path: Path) -> Callable[[Change], Path]:
    """Return a function that changes HRRR's contract and writes the changed contract to a file."""
    text = (resources.files("kfm_dagster.contracts") / "datasets" / "hrrr.yaml").read_text(encoding="utf-8")

    def write(change: Change) -> Path:
        file = tmp_path / "hrrr.yaml"
        file.write_text(change(text), encoding="utf-8")
        return file

    return write


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A sample object under its own key, its index beside it."""
    first = None
    for bucket, key, content in hrrr_samples(DAY, 2):
        path = tmp_path / "nodd" / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        first = first or path
    return first


def same(text: str) -> str:
    return text


SUSPECT = {
    ('summaries: ["hrrr:region", ', 'summaries: ["my:colour", '): "stac.summaries: the Item has no my:colour",
    ('summaries: ["hrrr:region", ', 'summaries: ["my:region", '): (
        "stac.summaries: the Item has no my:region, but hrrr:region: storage.key_grammar.implied.prefix sets the prefix"
    ),
    ("z.wrf{product}f", "z.f"): (
        "stac.item_id: it lacks {product}: objects whose keys differ only there share an Item"
    ),
    # The lead is 00, as is the cycle, but does not replace the cycle in the Item's id.
    ("t{cycle}z.", ""): "stac.item_id: it lacks {cycle}: objects whose keys differ only there share an Item",
    ("f{lead}", "f{lead}.{ak}"): (
        "stac.item_id: hrrr.20250402.conus.t00z.wrfsfcf00. has a gap, because this key has no ak"
    ),
}
"""Change of the contract, after which the Item is still sound > the expected warning."""


def test_a_sound_sample_prints_its_item_and_writes_no_file(
    call: Call,
    home: Path,
    tmp_path: Path,
    contract: Callable[[Change], Path],
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_the_deployment = tmp_path / "of the deployment"
    for name in ("BACKUP", "CATALOG", "LINEAGE", "STORAGE", "VIRTUAL"):
        monkeypatch.setenv(f"KFM_{name}_URL", str(of_the_deployment / name))
    monkeypatch.setenv("KFM_STAC_API_DSN", "postgresql://user@127.0.0.1:1/none")
    answer = call("dataset", "check", str(contract(same)), "--sample", str(sample), "--json")
    assert answer.code == ExitCode.DONE
    [report] = answer.rows
    checked = report["sample"]
    assert (checked["status"], checked["findings"], checked["is_sound"]) == ("succeeded", [], True)
    assert checked["item"]["id"].startswith("hrrr.20250402.")
    assert checked["uri"].endswith(sample.name)
    assert not home.exists()
    assert not of_the_deployment.exists()
    assert not [line for line in checked["suspect"] if line.startswith("stac.summaries")]
    assert "stac.item_id" not in str(checked["suspect"])
    for change, suspect in SUSPECT.items():
        file = contract(lambda text, change=change: text.replace(*change))  # type: ignore[misc]
        [report] = call("dataset", "check", str(file), "--sample", str(sample), "--json").rows
        assert report["sample"]["suspect"][-1] == suspect
    text = call("dataset", "check", str(contract(same)), "--sample", str(sample)).out
    assert text.startswith("hrrr: the contract is in order\n")
    assert re.search(r"  Item hrrr\.20250402\.\S+, bbox \[-1", text)
    assert "    proj:wkt2: PROJCRS" in text
    assert max(map(len, text.splitlines())) < 200 < len(checked["item"]["properties"]["proj:wkt2"])


def test_an_object_outside_the_listing_sets_is_checked_with_a_warning(
    call: Call, contract: Callable[[Change], Path], sample: Path
) -> None:
    def listing(values: str) -> Change:
        lines = "    - hrrr.%Y%m%d/conus/\n    - hrrr.%Y%m%d/alaska/\n"
        sets = f'    - "hrrr.%Y%m%d/{{region}}/"\n  listing_sets: {{region: [{values}]}}\n'
        return lambda text: text.replace(lines, sets)

    for values, left_out in (("alaska, conus", False), ("alaska", True)):
        answer = call("dataset", "check", str(contract(listing(values))), "--sample", str(sample), "--json")
        assert answer.code == ExitCode.DONE, answer
        [report] = answer.rows
        checked = report["sample"]
        assert checked["is_sound"]
        assert any(text.startswith("storage.listing_sets: ") for text in checked["suspect"]) == left_out


@pytest.mark.clause("BEY-18")
def test_a_key_without_a_time_is_checked_with_the_modification_day_of_the_file(call: Call, tmp_path: Path) -> None:
    [(bucket, key, content)] = ndfd_samples(DAY, 1)
    path = tmp_path / "nodd" / bucket / key
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    written = datetime(2025, 4, 3, 6, tzinfo=UTC).timestamp()
    os.utime(path, (written, written))
    shipped = resources.files("kfm_dagster.contracts") / "datasets" / "ndfd.yaml"
    [report] = call("dataset", "check", str(shipped), "--sample", str(path), "--json").rows
    assert report["sample"]["is_sound"], report


AT_FAULT: dict[str, tuple[Change, Change, str]] = {
    # fault: change of the contract, change of the object's bytes (as Latin-1), expected finding
    "a cut object": (same, lambda content: content[: len(content) * 3 // 4], "truncated_object"),
    "another format": (same, lambda content: "x" + content, "bad_magic"),
    "a number without a unit": (
        lambda text: text.replace('{fields: ["proj:transform", "proj:bbox"], unit: m}', "{fields: [gsd], unit: m}"),
        same,
        "G4: proj:",
    ),
    "a listing that does not find it": (
        lambda text: text.replace("- hrrr.%Y%m%d/conus/", "- hrrr.%Y%m%d/hawaii/"),
        same,
        "so that no backfill would find it; listed were hrrr.20250402/hawaii/, hrrr.20250402/alaska/",
    ),
}


@pytest.mark.parametrize("case", AT_FAULT)
def test_an_object_that_is_at_fault_or_would_not_be_listed_gives_findings_and_exit_code_4(
    case: str, call: Call, contract: Callable[[Change], Path], sample: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, spoil, expected = AT_FAULT[case]
    sample.write_bytes(spoil(sample.read_bytes().decode("latin-1")).encode("latin-1"))
    answer = call("dataset", "check", str(contract(change)), "--sample", str(sample), "--json")
    assert answer.code == ExitCode.FINISHED_WITH_FAILURES, answer
    [report] = answer.rows
    checked = report["sample"]
    assert any(expected in finding for finding in checked["findings"]), checked["findings"]
    assert not checked["is_sound"]
    assert caplog.messages == [], "a check must log no events: these are for the deployment's own units"


def test_a_sample_with_a_key_outside_the_contract_gives_one_error_line(
    call: Call, contract: Callable[[Change], Path], sample: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.grib2"
    elsewhere.write_bytes(sample.read_bytes())
    foreign = sample.with_name("other.grib2")
    foreign.write_bytes(b"GRIB")
    for file, expected in (
        (elsewhere, "is not below a bucket of the contract"),
        (foreign, "matches no data key of the contract"),
        (foreign, r"expected hrrr\.t(?P<cycle>\d{2})z\.wrf"),
        (foreign, "after 'hrrr.20250402/conus/'; the whole pattern is "),
        (tmp_path / "none", "next: fetch an object: aws s3 cp --no-sign-request s3://"),
    ):
        call("dataset", "check", str(contract(same)), "--sample", str(file)).refused(expected)


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "new-dataset.md"


def test_a_new_contract_passes_its_check_unchanged(call: Call, tmp_path: Path) -> None:
    for contract in ContractRegistry.load(None):
        topic = TOPIC if contract.notifications.topics else None
        text = draft(dataset="my-data", like=contract.id, bucket="my-bucket", topic=topic)
        drafted = parse_contract(text, source=contract.id)
        assert drafted.metadata.labels == contract.metadata.labels
        assert "  key_values:\n" not in text
        assert not re.search(r"(?m)^ +#", text), "a comment of the other dataset"
    for like in ("hrrr", "nexrad-l3"):
        out = tmp_path / f"{like}.yaml"
        arguments = ("dataset", "new", "my-data", "--like", like, "--bucket", "my-bucket", "--topic", TOPIC)
        begun = call(*arguments, "--out", str(out))
        assert (begun.code, begun.err) == (ExitCode.DONE, ""), like
        assert begun.out.endswith(f"next: kfm dataset check {out} --sample OBJECT\n")
        written = out.read_text(encoding="utf-8")
        assert call(*arguments).out == written
        assert call("dataset", "check", str(out)).out == f"my-data: {CHECKED}\n"
        # Links to web pages are those of the shipped contract.
        shipped = (resources.files("kfm_dagster.contracts") / "datasets" / f"{like}.yaml").read_text("utf-8")
        kept = re.findall(r"https://\S+", re.sub(r"(?m)^  mirrors:\n(?:    .*\n)+", "", shipped))
        assert re.findall(r"https://\S+", written) == kept


def test_a_contract_without_a_topic_must_be_modelled_on_a_contract_without_a_topic(call: Call, tmp_path: Path) -> None:
    out = str(tmp_path / "new.yaml")
    arguments = ("dataset", "new", "my-data", "--bucket", "my-bucket", "--out", out)
    assert call(*arguments, "--like", "surface-obs").code == ExitCode.DONE
    assert call("dataset", "check", out).out == f"my-data: {CHECKED}\n"
    without_topic = call(*arguments[:-1], f"{out}.other", "--like", "hrrr")
    without_topic.refused("hrrr is announced by a topic; observed no --topic")


def test_a_group_missing_in_the_key_pattern_is_reported_with_the_fields_that_use_the_group(
    call: Call, contract: Callable[[Change], Path]
) -> None:
    fields = ("stac.item_id", "ledger.extension_fields", "integrity.peers.groups", "virtual")
    by_region = ", ".join(f"{field} ['region']" for field in (*fields, "metadata_extract.key_values"))
    for group, uses in (("region", by_region), ("lead", "end_offset_hours ['lead']")):
        file = contract(lambda text, group=group: text.replace(f"(?P<{group}>", "(?:"))  # type: ignore[misc]
        call("dataset", "check", str(file)).refused(
            f"observed groups that are not in the key pattern: {uses}; the pattern has"
        )


@pytest.mark.deployment
@pytest.mark.clause("BEY-15", "BEY-18")
def test_the_guide_leads_from_an_empty_folder_to_an_ingested_dataset(
    call: Call, tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run each command and apply each change of the page; `tmp_path` is the working folder."""
    page = GUIDE.read_text(encoding="utf-8")
    [(named,), (begin,), (check,), (make, export, listing), (ingest,)] = [
        block.strip().splitlines() for block in re.findall(r"(?m)(?:^    \S.*\n)+", page)
    ]
    (tmp_path / named).parent.mkdir(parents=True)
    # A real object of GFS, changed to the lead of the page; GraphCastGFS has the same grid and packing.
    [gfs] = (shared_data / "objects/noaa-gfs-bdp-pds").rglob("gfs.t12z.pgrb2.0p25.f023")
    message = eccodes.codes_new_from_message(gfs.read_bytes())
    eccodes.codes_set(message, "forecastTime", 24)
    (tmp_path / named).write_bytes(eccodes.codes_get_message(message))
    eccodes.codes_release(message)

    def typed(line: str) -> Answer:
        return call(*shlex.split(line.strip().removeprefix("kfm ")))

    assert typed(begin).code == ExitCode.DONE
    assert "matches no data key of the contract" in typed(check).err
    [changes] = re.findall(r"(?s)```diff\n(.*?)```", page)
    changed(tmp_path / "graphcastgfs.yaml", changes)
    done = typed(check)
    assert done.code == ExitCode.DONE, done
    assert "Item graphcastgfs.20260605.t12z.pgrb2.0p25.f024" in done.out
    assert "forecast:horizon: PT24H" in done.out
    subprocess.run(["/bin/sh", "-c", make], check=True, timeout=60)
    assert export.strip() == 'export KFM_CONTRACTS_DIR="$PWD/contracts"'
    monkeypatch.setenv("KFM_CONTRACTS_DIR", str(tmp_path / "contracts"))
    assert re.search(r"graphcastgfs +preliminary ", typed(listing).out)
    answer = typed(ingest)
    assert answer.code == ExitCode.DONE, answer
    assert re.search(r"graphcastgfs +1 +1 +0 +0 +0 ", answer.out), answer.out
    (item,) = (tmp_path / "graphcastgfs-home/catalog/graphcastgfs").rglob("*.f024.json")
    assert json.loads(item.read_bytes())["properties"]["forecast:horizon"] == "PT24H"
    collection = json.loads((tmp_path / "graphcastgfs-home/catalog/graphcastgfs/collection.json").read_bytes())
    assert (collection["kfm:status"], collection["experimental"]) == ("preliminary", True)


def changed(file: Path, diff: str) -> None:
    """Apply the page's diff: replace each removed line by the lines that are added after it."""
    text = file.read_text(encoding="utf-8")
    for line, instead in re.findall(r"(?m)^-(.*\n)((?:\+.*\n)*)", diff):
        assert line in text
        text = text.replace(line, re.sub(r"(?m)^\+", "", instead), 1)
    file.write_text(text, encoding="utf-8")
