"""Compaction: the parts of a day that is over become one file, a row group at a time.

A day that is being filled has few parts (`parts.py`), because writing all of a large one again for each batch would
cost more than the batch. Once others have brought as many changes as it has Items, it is written again as one: so each
Item is written once more, however days are filled side by side. Does not belong here: what makes the file stand
(`days.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from kfm_dagster.followers.geoparquet.days import Day
from kfm_dagster.followers.geoparquet.parts import PART_ROWS, DayPart, parquet_writer

MOST_ROWS = 4 * PART_ROWS
"""Of a day that becomes one file: 80 MB. The largest day of a dataset that ships has 120,000 Items."""


def candidates(files: Mapping[str, Sequence[str]], newest: str) -> list[str]:
    """Return the days before the one before `newest` that have several parts."""
    before = (date.fromisoformat(newest) - timedelta(days=1)).isoformat()
    return sorted(
        day for day, names in files.items() if day < before and sum(name.endswith(".parquet") for name in names) > 1
    )


def is_due(stands: Day, through: int) -> bool:
    """Return whether a day is to become one file after the change `through` of others."""
    return len(stands.parts) > 1 and stands.rows <= min(MOST_ROWS, through - stands.through)


def compacted(stands: Day, contents: Sequence[bytes], through: int) -> tuple[Day, bytes] | None:
    """Return a day with one part, and the bytes of it; None where its parts have no schema in common.

    `contents` are those of the day's parts, in their order. Row groups come in the order of their first Item's time.
    """
    files = [pq.ParquetFile(pa.BufferReader(content)) for content in contents]
    try:
        schema = pa.unify_schemas([file.schema_arrow.remove_metadata() for file in files], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    numbered = chain.from_iterable(
        ((group, file, at) for at, group in enumerate(part.groups))
        for part, file in zip(stands.parts, files, strict=True)
    )
    groups = sorted(numbered, key=lambda one: (one[0].start, one[0].end, one[2]))
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, schema, [file.schema_arrow.metadata[b"geo"] for file in files]) as writer:
        for _, file, at in groups:
            rows = pa.concat_tables(
                [schema.empty_table(), file.read_row_group(at).replace_schema_metadata()], promote_options="permissive"
            )
            writer.write_table(rows, row_group_size=rows.num_rows)
    content = sink.getvalue().to_pybytes()
    day = stands.after(through, ())
    name = f"{day.prefix}-{hashlib.sha256(content).hexdigest()[:12]}.parquet"
    part = DayPart(name=name, size=len(content), groups=tuple(group for group, *_ in groups))
    return day.after(through, [part]), content
