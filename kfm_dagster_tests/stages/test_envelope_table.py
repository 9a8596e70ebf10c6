"""Stored envelopes keep every field."""

from __future__ import annotations

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.stages.envelope_table import columns_of, from_parquet, to_parquet, to_table
from kfm_dagster_tests.factories import envelope, envelopes, failed, finished


@given(st.lists(envelopes(), max_size=4))
def test_round_trip_keeps_every_field_and_the_order(batch: list[Envelope]) -> None:
    assert from_parquet(to_parquet(columns_of(batch))) == batch


def test_equal_batches_give_equal_bytes() -> None:
    batch = [finished(envelope(number)) for number in range(20)]
    assert to_parquet(columns_of(batch)) == to_parquet(columns_of(list(batch)))


@given(st.lists(envelopes(), max_size=4), st.data())
def test_only_sections_changed_by_a_stage_are_encoded_again(batch: list[Envelope], data: st.DataObject) -> None:
    columns = columns_of(batch)
    indices = range(len(batch))
    changed = {index: finished(batch[index]) for index in indices if data.draw(st.booleans())}
    after = [changed.get(index, batch[index]) for index in indices]
    repeated = columns_of(after, earlier=columns)
    assert to_parquet(repeated) == to_parquet(columns_of(after))
    assert columns_of(list(after), earlier=repeated) == repeated
    assert to_parquet(columns_of(batch[1:], earlier=columns)) == to_parquet(columns_of(batch[1:]))


def test_a_batch_can_be_queried_in_sql() -> None:
    batch = to_table(columns_of([finished(envelope(0)), failed(envelope(1)), failed(envelope(2), "etag_mismatch")]))
    with duckdb.connect() as connection:
        connection.register("batch", batch)
        counts = connection.execute("SELECT integrity_status, count(*) FROM batch GROUP BY 1 ORDER BY 1").fetchall()
    assert counts == [("failed", 2), ("ok", 1)]
