"""Catalog follower that keeps the GeoParquet of each day.

A few new Items become a small part. Parts with an updated or withdrawn Item are rewritten without its old version, so
every reader of a part sees only current Items. Does not belong here: merging (`parts.py`), descriptions (`days.py`).

A day that still gets Items has a few parts, because rewriting a large part for each batch would cost more than the
batch. A day's parts are compacted into one once the newest Items are two days younger, and the catalog has had as many
changes after the day's last change as the day has Items. The day has then probably got its last Item, even if several
days are filled in parallel. So compaction writes each Item only once.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import chain

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kfm_dagster.catalog.changes import ItemChange
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.geoparquet.days import Day, files_of, folder, lost, read_days, years
from kfm_dagster.followers.geoparquet.order import ordered
from kfm_dagster.followers.geoparquet.parts import PART_ROWS, DayPart, parquet_writer, parts_of, to_merge
from kfm_dagster.followers.geoparquet.rows import merged, to_table, without
from kfm_dagster.storage.publisher import Publisher, publish

KEPT_IDS = 64
"""Parts whose Item ids are cached in memory, at most 4 MB for each part. Parts never change."""
PARSED = 100
"""Items that are parsed at a time; a parsed Item of HRRR takes 250 kB."""
MOST_ROWS = 4 * PART_ROWS
"""Maximum rows of a compacted day: 80 MB. The largest day of the included datasets has 120,000 Items."""


class GeoParquet:
    """Keeps the Items of each day as GeoParquet beside the catalog."""

    name = "geoparquet"
    after: Sequence[str] = ()

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._ids: dict[str, pa.Array] = {}

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Update the days of these Items, each day atomically.

        Raises PublishError, and DependencyUnavailableError for lost files.
        """
        by_year: dict[str, dict[str, list[ItemChange]]] = defaultdict(lambda: defaultdict(list))
        for change in changes:
            by_year[change.partition[:4]][change.partition].append(change)
        for year, by_day in by_year.items():
            directory = folder(contract.stac.collection, year)
            files_by_day = self._files(directory)
            files = {day: names for day, names in files_by_day.items() if day in by_day}
            days = read_days(self._publisher, directory, files)
            for day, day_changes in by_day.items():
                current = days.get(day, Day(day=day))
                new = [change for change in day_changes if change.change_id > current.through]
                if new:
                    self._write(directory, current, new)
            if files:
                self._clear(directory, files)
            unchanged = {day: names for day, names in files_by_day.items() if day not in by_day}
            self._compact(directory, unchanged, newest=max(by_day), through=changes[-1].change_id)

    def forget(self, contract: DatasetContract) -> None:
        """Remove all files of a collection. Raises PublishError."""
        for year in years(self._publisher, contract.stac.collection):
            directory = folder(contract.stac.collection, year)
            names = [name for day_files in self._files(directory).values() for name in day_files]
            # Remove descriptions first, so that no reader opens a description without its parts.
            self._remove(directory, sorted(names, key=lambda name: name.endswith(".parquet")))

    def _write(self, where: str, current: Day, changes: Sequence[ItemChange]) -> None:
        """Apply the changes to a day: write its parts, then its description."""
        changed_ids = pa.array([change.item_id for change in changes], pa.string())
        affected = [part for part in current.parts if pc.any(pc.is_in(self._ids_of(where, part), changed_ids)).as_py()]
        tables = [without(self._read(where, part), changed_ids) for part in affected]
        written = [change for change in changes if change.content is not None]
        tables += [
            to_table([change.item or {} for change in written[start : start + PARSED]])
            for start in range(0, len(written), PARSED)
        ]
        others = [part for part in current.parts if part not in affected]
        mergeable = to_merge(others, sum(table.num_rows for table in tables))
        tables += [self._read(where, part) for part in mergeable]
        tables = [table for table in tables if table.num_rows]
        through = max(change.change_id for change in changes)
        new = dict(parts_of(ordered(merged(tables)), current.after(through, ()).prefix)) if tables else {}
        day = current.after(through, [*(part for part in others if part not in mergeable), *new])
        self._publish(where, day, {part.name: content for part, content in new.items()})

    def _publish(self, where: str, day: Day, new: Mapping[str, bytes]) -> None:
        """Publish the new parts of a day, then the description that makes them current."""
        # Two calls, because after a power loss a description must not exist without its parts.
        for files in (new, {day.name(): day.content()}):
            publish(self._publisher, [{f"{where}/{name}": content for name, content in files.items()}])

    def _compact(self, where: str, files: Mapping[str, Sequence[str]], *, newest: str, through: int) -> None:
        """Compact the past day that has been unchanged for longest, if it is due, into one file.

        The new file has the state after change `through`, the last change of the batch.
        """
        before = (date.fromisoformat(newest) - timedelta(days=1)).isoformat()
        past = [
            day for day, names in files.items() if day < before and sum(name.endswith(".parquet") for name in names) > 1
        ]
        if not past:
            return
        # Choose the day that has been unchanged for longest; file names contain the number of the last change.
        day = min(sorted(past), key=lambda past_day: max(files[past_day]).removeprefix(past_day))
        current = read_days(self._publisher, where, {day: files[day]}).get(day, Day(day=day))
        if len(current.parts) > 1 and current.rows <= min(MOST_ROWS, through - current.through):
            merged_day = compacted(current, [self._content(where, part) for part in current.parts], through)
            if merged_day is None:
                return
            current, content = merged_day
            self._publish(where, current, {current.parts[0].name: content})
        if len(current.parts) == 1:
            # Perhaps a crash has prevented an earlier cleanup.
            self._clear(where, {day: files[day]})

    def _clear(self, where: str, files: Mapping[str, Sequence[str]]) -> None:
        """Remove the obsolete files of these days, even files left by a crash or a stalled writer."""
        files_by_day = {day: names for day, names in self._files(where).items() if day in files}
        days = read_days(self._publisher, where, files_by_day)
        for day, names in files_by_day.items():
            if (current := days.get(day)) is not None:
                current_names = {current.name(), *(part.name for part in current.parts)}
                self._remove(where, [name for name in names if name not in current_names])

    def _remove(self, where: str, names: Sequence[str]) -> None:
        if names:
            self._publisher.remove([f"{where}/{name}" for name in names])

    def _files(self, where: str) -> dict[str, list[str]]:
        return files_of(self._publisher.names(where))

    def _read(self, where: str, part: DayPart, columns: Sequence[str] | None = None) -> pa.Table:
        return pq.read_table(pa.BufferReader(self._content(where, part)), columns=columns)

    def _content(self, where: str, part: DayPart) -> bytes:
        path = f"{where}/{part.name}"
        if (content := self._publisher.read([path]).get(path)) is None:
            raise lost(path)
        return content

    def _ids_of(self, where: str, part: DayPart) -> pa.Array:
        """Return the ids of a part's Items."""
        path = f"{where}/{part.name}"
        if path not in self._ids:
            while len(self._ids) >= KEPT_IDS:
                self._ids.pop(next(iter(self._ids)))
            self._ids[path] = self._read(where, part, ["id"])["id"]
        return self._ids[path]


def compacted(current: Day, contents: Sequence[bytes], through: int) -> tuple[Day, bytes] | None:
    """Merge a day's parts into one; return the day and the bytes, None without a common schema.

    `contents` are the bytes of the day's parts, in their order. Row groups are ordered by the time of their first Item.
    """
    files = [pq.ParquetFile(pa.BufferReader(content)) for content in contents]
    try:
        schema = pa.unify_schemas([file.schema_arrow.remove_metadata() for file in files], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    numbered = chain.from_iterable(
        ((group, file, at) for at, group in enumerate(part.groups))
        for part, file in zip(current.parts, files, strict=True)
    )
    groups = sorted(numbered, key=lambda entry: (entry[0].start, entry[0].end, entry[2]))
    sink = pa.BufferOutputStream()
    geometries = [orjson.loads(file.schema_arrow.metadata[b"geo"])["columns"]["geometry"] for file in files]
    with parquet_writer(sink, schema, {kind for entry in geometries for kind in entry["geometry_types"]}) as writer:
        for _, file, at in groups:
            rows = pa.concat_tables(
                [schema.empty_table(), file.read_row_group(at).replace_schema_metadata()], promote_options="permissive"
            )
            writer.write_table(rows, row_group_size=rows.num_rows)
    content = sink.getvalue().to_pybytes()
    day = current.after(through, ())
    name = f"{day.prefix}-{hashlib.sha256(content).hexdigest()[:12]}.parquet"
    part = DayPart(name=name, size=len(content), groups=tuple(group for group, *_ in groups))
    return day.after(through, [part]), content
