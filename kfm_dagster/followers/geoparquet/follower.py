"""The follower of the catalog that keeps the GeoParquet of each day.

A few Items are a small part of their own; parts in which an Item was updated or withdrawn are written again without it,
so that every part is what it says, for every reader. Does not belong here: which parts are merged (`parts.py`), what
makes them stand (`days.py`).

A day that is being filled has few parts, because writing all of a large one again for each batch would cost more than
the batch. Once others have brought as many changes as it has Items, it is written again as one: so each Item is written
once more, however days are filled side by side.
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
from kfm_dagster.catalog.publisher import Publisher, publish
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.geoparquet.days import Day, files_of, folder, lost, read_days, years
from kfm_dagster.followers.geoparquet.order import ordered
from kfm_dagster.followers.geoparquet.parts import PART_ROWS, DayPart, parquet_writer, parts_of, to_merge
from kfm_dagster.followers.geoparquet.rows import merged, to_table, without

KEPT_IDS = 64
"""Parts whose ids are kept in memory: 4 MB each at most. Parts never change."""
MOST_ROWS = 4 * PART_ROWS
"""Of a day that becomes one file: 80 MB. The largest day of a dataset that ships has 120,000 Items."""


class GeoParquet:
    """Keeps, beside the catalog, the Items of each day as GeoParquet."""

    name = "geoparquet"
    after: Sequence[str] = ()

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._ids: dict[str, pa.Array] = {}

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Bring the days of these Items up to date, each at once.

        Raises PublishError, and DependencyUnavailableError for lost files.
        """
        by_year: dict[str, dict[str, list[ItemChange]]] = defaultdict(lambda: defaultdict(list))
        for change in changes:
            by_year[change.partition[:4]][change.partition].append(change)
        for year, by_day in by_year.items():
            where = folder(contract.stac.collection, year)
            found = self._files(where)
            files = {day: names for day, names in found.items() if day in by_day}
            days = read_days(self._publisher, where, files)
            for day, of_day in by_day.items():
                stands = days.get(day, Day(day=day))
                new = [change for change in of_day if change.change_id > stands.through]
                if new:
                    self._write(where, stands, new)
            if files:
                self._clear(where, files)
            quiet = {day: names for day, names in found.items() if day not in by_day}
            self._compact(where, quiet, newest=max(by_day), through=changes[-1].change_id)

    def forget(self, contract: DatasetContract) -> None:
        """Take away all files of a collection. Raises PublishError."""
        for year in years(self._publisher, contract.stac.collection):
            where = folder(contract.stac.collection, year)
            names = [name for of_day in self._files(where).values() for name in of_day]
            # Descriptions first: no reader is left with one whose parts are gone.
            self._remove(where, sorted(names, key=lambda name: name.endswith(".parquet")))

    def _write(self, where: str, stands: Day, changes: Sequence[ItemChange]) -> None:
        """Write what the changes make of a day, the parts before the description that makes them stand."""
        touched = pa.array([change.item_id for change in changes], pa.string())
        hit = [part for part in stands.parts if pc.any(pc.is_in(self._ids_of(where, part), touched)).as_py()]
        tables = [without(self._read(where, part), touched) for part in hit]
        if items := [change.item for change in changes if change.item is not None]:
            tables.append(to_table(items))
        others = [part for part in stands.parts if part not in hit]
        again = to_merge(others, sum(table.num_rows for table in tables))
        tables += [self._read(where, part) for part in again]
        tables = [table for table in tables if table.num_rows]
        through = max(change.change_id for change in changes)
        new = dict(parts_of(ordered(merged(tables)), stands.after(through, ()).prefix)) if tables else {}
        day = stands.after(through, [*(part for part in others if part not in again), *new])
        self._publish(where, day, {part.name: content for part, content in new.items()})

    def _publish(self, where: str, day: Day, new: Mapping[str, bytes]) -> None:
        """Put the new parts of a day in their places, then the description that makes them stand."""
        # A description that survives a power loss without its parts would be none.
        for files in (new, {day.name(): day.content()}):
            publish(self._publisher, [{f"{where}/{name}": content for name, content in files.items()}])

    def _compact(self, where: str, files: Mapping[str, Sequence[str]], *, newest: str, through: int) -> None:
        """Let one day that is over, and that these changes leave alone, become one file where it is due.

        It is then a day after the change `through`, the last of those that are followed.
        """
        before = (date.fromisoformat(newest) - timedelta(days=1)).isoformat()
        over = [
            day for day, names in files.items() if day < before and sum(name.endswith(".parquet") for name in names) > 1
        ]
        if not over:
            return
        # The one that has been left alone the longest; the number of its last change is in the names.
        day = min(sorted(over), key=lambda one: max(files[one]).removeprefix(one))
        stands = read_days(self._publisher, where, {day: files[day]}).get(day, Day(day=day))
        if len(stands.parts) > 1 and stands.rows <= min(MOST_ROWS, through - stands.through):
            merged_day = compacted(stands, [self._content(where, part) for part in stands.parts], through)
            if merged_day is None:
                return
            stands, content = merged_day
            self._publish(where, stands, {stands.parts[0].name: content})
        if len(stands.parts) == 1:
            # Also where a crash has kept it from being cleared.
            self._clear(where, {day: files[day]})

    def _clear(self, where: str, files: Mapping[str, Sequence[str]]) -> None:
        """Take away what no longer stands of days that had files: also what a crash or a stalled writer left."""
        now = {day: names for day, names in self._files(where).items() if day in files}
        days = read_days(self._publisher, where, now)
        for day, names in now.items():
            if (stands := days.get(day)) is not None:
                kept = {stands.name(), *(part.name for part in stands.parts)}
                self._remove(where, [name for name in names if name not in kept])

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
    described = [orjson.loads(file.schema_arrow.metadata[b"geo"])["columns"]["geometry"] for file in files]
    with parquet_writer(sink, schema, {kind for one in described for kind in one["geometry_types"]}) as writer:
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
