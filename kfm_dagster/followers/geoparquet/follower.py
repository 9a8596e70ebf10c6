"""The follower of the catalog that keeps the GeoParquet of each day.

A few Items are a small part of their own; parts in which an Item was updated or withdrawn are written again without it,
so that every part is what it says, for every reader. Does not belong here: which parts are merged (`parts.py`), what
makes them stand (`days.py`), how a day that is over becomes one file (`compaction.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kfm_dagster.catalog.changes import FollowError, ItemChange
from kfm_dagster.catalog.publisher import Publisher, PublishError, publish
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.followers.geoparquet.compaction import candidates, compacted, is_due
from kfm_dagster.followers.geoparquet.days import Day, LostPartsError, files_of, folder, read_days, years
from kfm_dagster.followers.geoparquet.order import ordered
from kfm_dagster.followers.geoparquet.parts import DayPart, parts_of, to_merge
from kfm_dagster.followers.geoparquet.rows import merged, to_table, without

KEPT_IDS = 64
"""Parts whose ids are kept in memory: 4 MB each at most. Parts never change."""


class GeoParquet:
    """Keeps, beside the catalog, the Items of each day as GeoParquet."""

    name = "geoparquet"
    after: Sequence[str] = ()

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._ids: dict[str, pa.Array] = {}

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Bring the days of these Items up to date, each at once. Raises FollowError."""
        by_year: dict[str, dict[str, list[ItemChange]]] = defaultdict(lambda: defaultdict(list))
        for change in changes:
            by_year[change.partition[:4]][change.partition].append(change)
        with _answering(contract):
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
        """Take away all files of a collection. Raises FollowError."""
        with _answering(contract):
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
        if not (days := candidates(files, newest)):
            return
        # The one that has been left alone the longest; the number of its last change is in the names.
        day = min(days, key=lambda one: max(files[one]).removeprefix(one))
        stands = read_days(self._publisher, where, {day: files[day]}).get(day, Day(day=day))
        if is_due(stands, through):
            made = compacted(stands, [self._content(where, part) for part in stands.parts], through)
            if made is None:
                return
            stands, content = made
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
            raise LostPartsError(observed=path, next_step="kfm stac rebuild --place geoparquet")
        return content

    def _ids_of(self, where: str, part: DayPart) -> pa.Array:
        """Return the ids of a part's Items."""
        path = f"{where}/{part.name}"
        if path not in self._ids:
            while len(self._ids) >= KEPT_IDS:
                self._ids.pop(next(iter(self._ids)))
            self._ids[path] = self._read(where, part, ["id"])["id"]
        return self._ids[path]


@contextmanager
def _answering(contract: DatasetContract) -> Iterator[None]:
    try:
        yield
    except PublishError as error:
        raise FollowError(
            observed=f"GeoParquet of {contract.stac.collection}: {error}",
            next_step="see whether the catalog's place (KFM_CATALOG_URL) takes files",
        ) from error
    except LostPartsError as error:
        raise FollowError(observed=error.observed, next_step=error.next_step) from error
