"""Governance through the real nodes: who gets an Item, what is logged and when, and what is left of a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import GovernanceIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.stewardship import Governance
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceEntry
from kfm_dagster.ingest.evidence import read_evidence
from kfm_dagster.ingest.nodes import MetadataExtract, Settle, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.governance.conftest import cases_of, release
from kfm_dagster_tests.governance.test_rules import MASKING, governance
from kfm_dagster_tests.integration import chain, traces
from kfm_dagster_tests.lineage.prov_json import prov_json
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

SHOWN = ["platform", "instruments", "nexrad:message-type"]
SHIELDED = {"sensitivity": "sensitive", "access": "restricted", "masking": MASKING | {"properties": SHOWN}}
RUN = "run-1"
JANE = Decision(actor="jane", reason="the embargo is over", change_ref="CHG-7")
Open = Callable[..., Pipeline]


def under(pipeline: Pipeline, declared: Governance) -> Pipeline:
    """The pipeline, with the Collection of NEXRAD under another governance section."""

    def governed(contract: DatasetContract) -> DatasetContract:
        if contract.stac.collection != chain.DATASET:
            return contract
        document = contract.model_dump(mode="json") | {"governance": declared.model_dump(mode="json")}
        document["metadata_extract"]["required"] = SHOWN
        return DatasetContract.model_validate(document)

    pipeline.registry = ContractRegistry.of(governed(contract) for contract in pipeline.registry)
    return pipeline


@pytest.fixture
def opened(tmp_path: Path, objects: Path, database_url: str) -> Iterator[Open]:
    """Open the deployment under a governance section; again is another process."""
    with ExitStack() as stack:

        def again(**declared: Any) -> Pipeline:
            pipeline = chain.open_pipeline(tmp_path / "home", objects, url=database_url)
            return under(stack.enter_context(closing(pipeline)), governance(**declared))

        yield again


def arrive(pipeline: Pipeline, objects: Path, *items: chain.StoredObject) -> None:
    chain.put(objects, items)
    chain.notify_each(pipeline, *items)


def items_of(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    catalog = Path(pipeline.settings.catalog)
    return traces.items(catalog) if (catalog / "catalog.json").exists() else {}


def logged(pipeline: Pipeline, action: GovernanceAction) -> list[GovernanceEntry]:
    return own_tx(pipeline.ledger.log).entries(action=action, dataset=chain.DATASET)


def logged_refusals(pipeline: Pipeline) -> list[GovernanceEntry]:
    """Those of the quarantines that governance is why."""
    quarantines = logged(pipeline, GovernanceAction.QUARANTINE)
    return [entry for entry in quarantines if entry.details["reason_code"] == GovernanceIssue.HARD_FAIL]


@pytest.mark.clause("SEC-03", "WSM-09", "BEY-06")
@pytest.mark.parametrize(
    ("declared", "rule"),
    [
        ({"access": "closed"}, "access: access is closed, expected open or restricted"),
        (
            {"embargo": {"until": "2027-01-01T00:00:00Z"}},
            "embargo: embargoed until 2027-01-01T00:00:00.000000Z, expected an embargo that is over at {at}",
        ),
        (
            {
                "indigenous_data_flag": True,
                "consent": {"authority": "a council", "reference": "MOU-7", "valid_until": chain.START},
            },
            "consent: MOU-7 was valid until 2026-01-01T00:00:00.000000Z, expected a consent that is valid at {at}",
        ),
    ],
    ids=["access", "embargo", "consent"],
)
def test_what_governance_refuses_is_quarantined_at_once_without_a_trace_in_catalog_or_lineage(
    declared: dict[str, Any], rule: str, opened: Open, objects: Path
) -> None:
    rule = rule.format(at="2026-01-01T01:00:00.000000Z")
    pipeline = opened(**declared)
    sound, cut = chain.volumes(2)[0], chain.truncated(chain.volumes(2)[1])
    arrive(pipeline, objects, sound, cut)
    chain.work_until_done(pipeline)
    records = traces.records(pipeline)
    record = records[sound.uri]
    assert (record.status, record.attempts) == (Status.QUARANTINED, 1)
    assert (record.last_error_code, record.last_error_message) == (GovernanceIssue.HARD_FAIL, rule)
    *_, failed, quarantined = own_tx(pipeline.ledger).history(record.wal_id)
    assert (failed.from_status, failed.to_status) == (Status.IN_PROGRESS, Status.FAILED)
    assert (quarantined.from_status, quarantined.to_status) == (Status.FAILED, Status.QUARANTINED)
    # What failed for another reason is judged by that one, as often as its contract allows.
    assert (records[cut.uri].last_error_code, records[cut.uri].attempts) == ("size_mismatch", 3)
    assert items_of(pipeline) == {}
    assert not list(Path(pipeline.settings.lineage).rglob("*.*"))
    [entry] = logged_refusals(pipeline)
    assert (entry.wal_id, entry.reason, entry.details["run_id"]) == (record.wal_id, rule, record.ingest_run_id)
    [case] = [case for case in cases_of(pipeline).find(CaseState.OPEN) if case.wal_id == record.wal_id]
    assert case.evidence_file is not None
    bundle = read_evidence(pipeline.store, case.evidence_file)
    assert (bundle["reason"], bundle["operator"]) == (GovernanceIssue.HARD_FAIL, MetadataExtract.operator)
    assert (bundle["found"]["state"], bundle["found"]["first_hex"]) == ("withheld", "")


@pytest.mark.clause("SEC-03", "WSM-16")
def test_an_embargoed_unit_comes_back_until_its_embargo_is_over_and_is_then_released(
    opened: Open, objects: Path
) -> None:
    end = datetime(2026, 2, 1, tzinfo=UTC)
    pipeline = opened(embargo={"until": end})
    item = chain.volumes(1)[0]
    arrive(pipeline, objects, item)
    chain.work_until_done(pipeline)
    clock = pipeline.clock
    assert isinstance(clock, chain.Clock)
    for now, status in ((end - timedelta(days=1), Status.QUARANTINED), (end, Status.SUCCEEDED)):
        clock.now = now
        record = traces.records(pipeline)[item.uri]
        assert release(pipeline, record.wal_id, record.version, JANE) == {record.wal_id}
        chain.work_until_done(pipeline)
        assert traces.records(pipeline)[item.uri].status is status
    assert items_of(pipeline).keys() == {item.uri}
    assert len(logged_refusals(pipeline)) == 2
    collection = traces.catalog_tree(Path(pipeline.settings.catalog))["nexrad-l2/collection.json"]
    assert collection["kfm:embargo"] == "until 2026-02-01T00:00:00+00:00"


@pytest.mark.clause("SEC-03")
def test_every_attempt_of_a_run_judges_by_the_time_at_which_it_claimed_its_units(opened: Open, objects: Path) -> None:
    """An embargo that ends between the death of a run and its next execution does not make two outcomes of one run."""
    pipeline = opened(embargo={"until": chain.START + timedelta(minutes=1)})
    arrive(pipeline, objects, chain.volumes(1)[0])
    dies_at = chain.Failpoint(operator=MetadataExtract.operator, point="computed")
    with pytest.raises(chain.CrashError):
        chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER, dies_at=dies_at)
    clock = pipeline.clock
    assert isinstance(clock, chain.Clock)
    clock.forward(120)
    chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER)
    assert traces.statuses(pipeline) == {"quarantined": 1}


@pytest.mark.clause("SEC-03")
@pytest.mark.parametrize(
    "failpoint",
    [
        chain.Failpoint(operator=kind.operator, point=point)
        for kind in (MetadataExtract, Settle)
        for point in ("computed", "committing", "committed")
    ],
    ids=str,
)
def test_a_refusal_and_a_mask_are_logged_once_wherever_the_run_dies(
    failpoint: chain.Failpoint, opened: Open, objects: Path
) -> None:
    shown, embargoed = chain.volumes(24)[0], chain.volumes(24)[-1]
    embargo = {"days_after_observation": 1}
    pipeline = opened(**SHIELDED, embargo=embargo)
    assert isinstance(pipeline.clock, chain.Clock)
    pipeline.clock.now = datetime(2025, 4, 3, 12, tzinfo=UTC)
    arrive(pipeline, objects, shown, embargoed)
    with pytest.raises(chain.CrashError):
        chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER, dies_at=failpoint)
    before = len(logged(pipeline, GovernanceAction.MASK)), len(logged_refusals(pipeline))
    of_settle, committed = failpoint.operator == Settle.operator, failpoint.point == "committed"
    assert before == (int(of_settle or committed), int(of_settle and committed))
    for _ in range(2):
        chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER)
    [masked] = logged(pipeline, GovernanceAction.MASK)
    assert (masked.actor, masked.reason, masked.change_ref) == ("steward", "sites are sacred", "CARE-1")
    placed = {"run_id": RUN, "partition": chain.PARTITION, "units": 2}
    assert masked.details == {"method": "h3", "parameters": {"resolution": 4}, **placed}
    [refused] = logged_refusals(pipeline)
    assert refused.wal_id == traces.records(pipeline)[embargoed.uri].wal_id
    assert items_of(pipeline).keys() == {shown.uri}
    # Another run decides for itself.
    second = chain.volumes(24)[1]
    arrive(pipeline, objects, second)
    chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, "run-2", Source.LEDGER)
    assert [entry.details["run_id"] for entry in logged(pipeline, GovernanceAction.MASK)] == ["run-2", RUN]


@pytest.mark.clause("SEC-03")
def test_an_exact_location_is_nowhere_in_what_is_stored_or_shown(opened: Open, objects: Path, tmp_path: Path) -> None:
    item, cut = chain.volumes(2)[0], chain.truncated(chain.volumes(2)[1])
    exact = positions_of(item, tmp_path / "open")
    pipeline = opened(**SHIELDED)
    seen: list[str] = []
    arrive(pipeline, objects, item, cut)
    chain.run_chain(
        pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER,
        seen=lambda batch: seen.extend(map(str, batch.envelopes)),
    )  # fmt: skip
    assert stored_positions(exact, pipeline, seen) == []
    [shown] = items_of(pipeline).values()
    properties = shown["properties"]
    generic = {"datetime", "start_datetime", "end_datetime", "storage:schemes"}
    assert {name for name in properties if not name.startswith("kfm:")} == {*SHOWN, *generic}
    notice = {"kfm:sensitivity": "sensitive", "kfm:access": "restricted", "kfm:masking": "h3, resolution 4"}
    assert notice.items() <= properties.items()
    assert notice.items() <= traces.catalog_tree(Path(pipeline.settings.catalog))["nexrad-l2/collection.json"].items()
    assert logged_refusals(pipeline) == []
    [document] = (Path(pipeline.settings.lineage) / "prov").rglob("*.jsonld")
    activities = prov_json(document.read_bytes())["activity"].values()
    [masking] = [one for one in activities if one.get("kfm:method") == "h3"]
    assert (masking["kfm:dataset"], masking["kfm:change_ref"]) == (pipeline.registry[chain.DATASET].public_id, "CARE-1")


def positions_of(item: chain.StoredObject, folder: Path) -> set[str]:
    """Every degree that an open dataset shows of the object, as text."""
    chain.put(folder / "objects", [item])
    with closing(chain.open_pipeline(folder / "home", folder / "objects")) as pipeline:
        chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN)
        [shown] = items_of(pipeline).values()
    assert not {"kfm:sensitivity", "kfm:access", "kfm:masking"} & shown["properties"].keys()
    pairs = [*shown["geometry"]["coordinates"][0], shown["bbox"]]
    degrees = {str(degrees) for pair in pairs for degrees in pair}
    degrees |= {str(shown["properties"][f"nexrad:{name}"]) for name in ("latitude", "longitude")}
    # Shorter ones could be anything.
    return {text for text in degrees if len(text) > 7}


def stored_positions(exact: set[str], pipeline: Pipeline, batches: list[str]) -> list[str]:
    """The positions in a file or a row of the deployment, or in the batches that its compressed artifacts hold."""
    home = Path(pipeline.settings.home)
    texts = [path.read_text(encoding="utf-8") for path in home.rglob("*.*json*") if path.suffix != ".gz"]
    texts += [row for rows in every_row(pipeline.database).values() for row in rows] + batches
    return [position for position in exact if any(position in text for text in texts)]
