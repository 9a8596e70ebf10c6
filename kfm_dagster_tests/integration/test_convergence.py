"""Whatever a run dies of, the next one converges to the catalog, lineage and final statuses of an undisturbed one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import Retry
from kfm_dagster.ingest.nodes import Source, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.batch import SkipCause
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    announce,
    missing,
    put,
    run_chain,
    take,
    truncated,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

PARTITION = DAY.isoformat()
ITEMS = [*volumes(2), missing(volumes(3)[2]), truncated(volumes(4)[3])]
"""Two volumes that succeed and two that end in quarantine."""


def take_items(pipeline: Pipeline) -> None:
    take(pipeline, *(announce([item.event()], registry=pipeline.registry) for item in ITEMS))


def everything(pipeline: Pipeline) -> dict[str, Any]:
    """What two ways to one outcome must have in common."""
    lineage = Path(pipeline.settings.lineage)
    told, edges = traces.events(lineage), traces.prov_edges(lineage)
    traces.assert_once(told)
    traces.assert_once(edges)
    return {
        "ledger": traces.outcomes(pipeline),
        "catalog": traces.catalog_tree(Path(pipeline.settings.catalog)),
        "events": told,
        "edges": edges,
        "messages": pipeline.deliveries.counts(),
    }


@pytest.mark.clause("WAL-05", "WAL-06")
def test_ingesting_again_changes_nothing(pipeline: Pipeline, objects: Path) -> None:
    put(objects, ITEMS[:2])
    run_chain(pipeline, "nexrad-l2", PARTITION, "run-1", Source.LISTING)
    catalog = Path(pipeline.settings.catalog)
    before = (
        everything(pipeline),
        trees.files(catalog),
        {uri: r.version for uri, r in traces.records(pipeline).items()},
    )

    for number, source in enumerate(Source, start=2):
        batch = run_chain(pipeline, "nexrad-l2", PARTITION, f"run-{number}", source)
        if source is Source.LISTING:
            assert (batch.skipped, batch.applied_by) == (SkipCause.CONTENT_APPLIED, "run-1")
        else:
            assert not batch.envelopes
    take(pipeline, *(announce([item.event()], registry=pipeline.registry) for item in ITEMS[:2]))
    work_until_done(pipeline)

    after = (
        everything(pipeline),
        trees.files(catalog),
        {uri: r.version for uri, r in traces.records(pipeline).items()},
    )
    assert {**after[0], "messages": None} == {**before[0], "messages": None}
    assert after[1:] == before[1:]


@pytest.mark.clause("RSP-18")
def test_a_finished_run_done_again_under_another_contract_keeps_its_record(pipeline: Pipeline, objects: Path) -> None:
    put(objects, ITEMS)
    take_items(pipeline)
    run_chain(pipeline, "nexrad-l2", PARTITION, "run-1", Source.LEDGER)
    records = pipeline.stages.run_states.of_run("run-1")
    before = everything(pipeline)
    stricter = Retry(max_attempts=1, backoff=pipeline.registry["nexrad-l2"].retry.backoff)
    pipeline.registry = ContractRegistry.of(
        contract.model_copy(update={"retry": stricter}) for contract in pipeline.registry
    )
    skips: list[SkipCause | None] = []
    run_chain(pipeline, "nexrad-l2", PARTITION, "run-1", Source.LEDGER, seen=lambda batch: skips.append(batch.skipped))
    assert skips == [SkipCause.OTHER_INPUTS] * len(operators())
    assert pipeline.stages.run_states.of_run("run-1") == records
    assert everything(pipeline) == before


@pytest.mark.clause("RSP-18")
def test_a_settlement_done_again_counts_nothing_lost_that_is_its_runs_success(
    pipeline: Pipeline, objects: Path
) -> None:
    put(objects, volumes(2))
    take(pipeline, announce([item.event() for item in volumes(2)], registry=pipeline.registry))
    batch = run_chain(pipeline, "nexrad-l2", PARTITION, "run-1", Source.LEDGER)
    again = own_tx(pipeline.ledger).settle(list(batch.envelopes), run_id="run-1")
    other = own_tx(pipeline.ledger).settle(list(batch.envelopes), run_id="run-2")
    assert (len(batch.envelopes), again.lost, len(other.lost)) == (2, (), 2)


@pytest.mark.clause("WAL-06")
def test_two_ledgers_over_the_same_objects_agree(make_pipeline: Callable[..., Pipeline], objects: Path) -> None:
    put(objects, ITEMS)
    found = []
    for home in ("one", "other"):
        pipeline = make_pipeline(home=home)
        take_items(pipeline)
        run_chain(pipeline, "nexrad-l2", PARTITION, f"run of {home}", Source.LEDGER)
        work_until_done(pipeline)
        found.append(
            everything(pipeline)
            | {
                "rows": {
                    uri: record.model_dump(exclude={"ingest_run_id"})
                    for uri, record in traces.records(pipeline).items()
                }
            }
        )
    assert found[0] == found[1]
    assert {record["status"] for record in found[0]["rows"].values()} == {Status.SUCCEEDED, Status.QUARANTINED}
