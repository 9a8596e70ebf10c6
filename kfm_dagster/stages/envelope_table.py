"""Stored envelopes: a batch as an Arrow table and as Parquet, and back without loss.

A column is a leaf of the envelope (`contracts/envelope_codec.py`), so that gates and reports can query batches in SQL;
open-ended members (geometry, properties, issues) are JSON text. Times are UTC with microseconds. Row order is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import zip_longest
from operator import is_
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kfm_dagster.contracts import envelope_codec
from kfm_dagster.contracts.envelope import Envelope

# pyarrow's allocator keeps memory of earlier batches (45 MiB in a run of 5,000 units); the system's allocator frees it.
pa.set_memory_pool(pa.system_memory_pool())

_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
    list[str]: pa.list_(pa.string()),
    list[int]: pa.list_(pa.int64()),
    list[float]: pa.list_(pa.float64()),
}

SCHEMA = pa.schema(
    [
        # A section may be absent; then all its columns are null.
        pa.field(leaf.name, _TYPES[leaf.kind], nullable=section.optional or not leaf.required)
        for section in envelope_codec.sections()
        for leaf in section.leaves
    ]
)


ENCODED = 500
"""Maximum values encoded at a time, because the properties of an HRRR object are 20 kB of JSON."""


class Column(NamedTuple):
    """A leaf's values in a batch, and the same values as they are stored."""

    values: list[Any]
    at_rest: pa.ChunkedArray


def columns_of(envelopes: Iterable[Envelope], *, earlier: Sequence[Column] = ()) -> list[Column]:
    """Return each leaf's column; `earlier` columns with the same values are reused.

    Values are compared by identity. A stage leaves most values unchanged, so few are encoded again.
    """
    columns: list[Column] = []
    leaves = envelope_codec.values(list(envelopes))
    for (leaf, values), field, before in zip_longest(leaves, SCHEMA, earlier):
        if before is not None and len(before.values) == len(values) and all(map(is_, before.values, values)):
            columns.append(before)
        else:
            parts = [values[start : start + ENCODED] for start in range(0, len(values), ENCODED)]
            at_rest = pa.chunked_array([pa.array(leaf.at_rest(part), field.type) for part in parts], field.type)
            columns.append(Column(values, at_rest))
    return columns


def to_table(columns: Sequence[Column]) -> pa.Table:
    """Return a row per envelope, in order."""
    return pa.table([column.at_rest for column in columns], schema=SCHEMA)


def to_parquet(columns: Sequence[Column]) -> bytes:
    """Encode a batch; equal batches give equal bytes under the same pyarrow release."""
    sink = pa.BufferOutputStream()
    pq.write_table(to_table(columns), sink, compression="zstd", write_statistics=False)
    return bytes(sink.getvalue())


def from_parquet(content: bytes) -> list[Envelope]:
    """Decode a batch written by `to_parquet`."""
    columns = pq.read_table(pa.BufferReader(content)).select(SCHEMA.names).columns
    return list(envelope_codec.units(zip(*(column.to_pylist() for column in columns), strict=True)))
