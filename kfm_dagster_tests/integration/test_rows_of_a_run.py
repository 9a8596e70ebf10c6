"""What one unit costs the database, counted by table: a row more is a fact more, or the same fact again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.integration.chain import DAY, announce, put, run_chain, take, volumes

STAGES = 6
BY_STAGE = ["etl_checkpoint", "etl_steps", "etl_wal", "node_output", "run_state", "stage_state"]
"""Tables with a row for each stage."""
OTHERS = {
    # A row for the start of a stage, and one for its end with all that went well.
    "stage_audit": 2 * STAGES,
    "catalog_summaries": 5,
    "nodd_wal_transitions": 3,
    # Of all units of a dataset together: each status that any has reached; its message, what each of four operators
    # gave, bytes, latency and the time of the write (a class and a sum each), energy, carbon; each stage's outcome.
    "metric_totals": 3 + 1 + 4 + 1 + 2 + 2 + 2 + STAGES,
    "lineage_batches": 2,
    "lineage_emissions": 2,
    "catalog_changes": 1,
    "catalog_collections": 1,
    "catalog_items": 1,
    "catalog_pages": 1,
    "catalog_promotions": 1,
    "nodd_wal_deliveries": 1,
    "nodd_wal_delivery_units": 1,
    "nodd_wal_leases": 1,
    "nodd_wal_outcomes": 1,
    "nodd_wal_records": 1,
    # Of all units of a product together.
    "nodd_feeds": 1,
    # Of all units of a product and month together.
    "size_peers": 1,
}


def rows(pipeline: Pipeline) -> Counter[str]:
    """Rows by table."""
    with pipeline.database.engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        counts = {name: sa.select(sa.func.count()).select_from(sa.table(name)) for name in names}
        return Counter({name: connection.execute(count).scalar_one() for name, count in counts.items()})


def test_a_unit_that_was_announced_and_ingested_leaves_no_more_rows_than_these(
    make_pipeline: Callable[..., Pipeline], objects: Path
) -> None:
    pipeline = make_pipeline()
    items = volumes(1)
    put(objects, items)
    before = rows(pipeline)
    take(pipeline, announce([item.event() for item in items], registry=pipeline.registry))
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "run", Source.LEDGER)
    assert rows(pipeline) - before == Counter(dict.fromkeys(BY_STAGE, STAGES) | OTHERS)
