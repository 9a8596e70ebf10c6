"""Items of a catalog: search them, or get the newest Item that has a field.

Items are read from GeoParquet if the catalog has it, else from the JSON files that every STAC client reads.
Does not belong here: the objects that Items describe (`fields.py`).
"""

from __future__ import annotations

import json
import posixpath
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
from obstore.store import HTTPStore

from kfm_dagster.catalog.layout import ROOT, collection_path
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, UnknownNameError
from kfm_dagster.reading.names import REFERENCE, Item, layers_of, listed, matches, variables_of
from kfm_dagster.settings import Settings
from kfm_dagster.storage.publisher import ObjectStorePublisher, Publisher, PublishError, open_publisher

if TYPE_CHECKING:
    import pyarrow as pa
    import pystac

    from kfm_dagster.followers.geoparquet.search import PropertyCondition, SearchCriteria

Time: TypeAlias = str | datetime | None
Bbox: TypeAlias = tuple[float, float, float, float]

LONGEST_FORECAST = timedelta(days=300)
"""Exceeds the longest time from a run to a valid time: the nine months of NOAA's Climate Forecast System."""
LONGEST_ACCUMULATION = timedelta(days=31)
"""Longest time from an Item's start to the day of its folder: the length of a monthly mean."""
SPANS = [timedelta(hours=2**doublings - 1) for doublings in range(9)]
"""How far `latest` searches before the newest Item or run, one span after the other, up to ten days."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def search(
    dataset: str | Sequence[str] | None = None,
    *,
    time: Time | tuple[Time, Time] = None,
    bbox: Bbox | None = None,
    limit: int | None = None,
    catalog: str | None = None,
    **properties: object,
) -> list[pystac.Item]:
    """Return the Items that meet all conditions, by Collection and day.

    `dataset` is the id of a dataset or of a Collection, or several ids. `time` is a day, a moment, START/END as text
    (UTC, `..` is open), or a pair of moments, both inclusive. `bbox` is west, south, east, north in degrees; if west >
    east, it crosses the antimeridian. `properties` are values that the Item has: `**{"hrrr:lead-hours": 6}`. `catalog`
    is a folder, s3://bucket/prefix or https://host/path; by default KFM_CATALOG_URL, else the catalog in KFM_HOME.

    Raises UnknownNameError for an unknown dataset, ConfigurationError for a wrong condition or without a catalog, and
    DependencyUnavailableError if the catalog does not answer.
    """
    start, end = time_range(time)
    opened = CatalogFiles(catalog)
    names = [dataset] if isinstance(dataset, str) else dataset
    box = None if bbox is None else checked_bbox(bbox)
    conditions = equal(properties)
    entries = opened.items(names, start=start, end=end, bbox=box, conditions=conditions)
    items = [to_pystac(*entry) for entry in islice(entries, limit)]
    for line in () if items else opened.unknown_properties(names, conditions):
        warnings.warn(line, stacklevel=2)
    return items


def latest(
    dataset: str,
    *,
    field: str | None = None,
    level: str | None = None,
    catalog: str | None = None,
    **properties: object,
) -> pystac.Item:
    """Return the newest Item whose object has a field.

    For a model this is the shortest forecast of the newest run with the field; for other data, the last Item in time.
    Raises UnknownNameError if no Item of the ten days before the newest Item (of a model: the newest run) has the
    field, and as `search` does.
    """
    opened = CatalogFiles(catalog)
    last = opened.newest_time(dataset) - timedelta(seconds=1)
    conditions = equal(properties)
    newest = next(opened.items([dataset], start=last), None)
    run = None if newest is None else newest[1]["properties"].get(REFERENCE)
    if run is not None:
        last = datetime.fromisoformat(run) - timedelta(seconds=1)
    for span in SPANS:
        before = last - span
        runs = () if run is None else ((REFERENCE, ">", rfc3339(before)),)
        items = opened.items([dataset], start=before, conditions=(*conditions, *runs))
        if candidates := [entry for entry in items if matches(entry[1], field, level)]:
            return to_pystac(*max(candidates, key=lambda entry: newness(entry[1], field, level)))
    raise UnknownNameError(
        f"no recent Item of {dataset} has the field and the properties",
        observed=", ".join(filter(None, (field, level, *(f"{name}={value}" for name, _, value in conditions)))),
        expected=f"an Item since {before:%Y-%m-%d}" + ("" if newest is None else _fields_of(newest[1])),
    )


class CatalogFiles:
    """The files of a catalog, read without its database."""

    def __init__(self, url: str | None = None) -> None:
        """Open the files. Raises ConfigurationError for an unknown kind of address."""
        settings = Settings.load()
        self.url = (url or settings.catalog).rstrip("/")
        self._contracts = settings.contracts_dir
        # A web server lists no folders, so its GeoParquet cannot be listed.
        self._lists = not self.url.startswith(("https://", "http://"))
        self._publisher: Publisher = (
            open_publisher(self.url)
            if self._lists
            else ObjectStorePublisher(HTTPStore.from_url(self.url, client_options={"allow_http": True}))
        )

    def items(
        self,
        names: Sequence[str] | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        bbox: Bbox | None = None,
        conditions: Sequence[PropertyCondition] = (),
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield matching Items with the addresses of their files; without names, of all datasets.

        Raises as `search` does.
        """
        # Imported here, because pyarrow and DuckDB take 0.4 s to import.
        from kfm_dagster.followers.geoparquet.rows import to_items  # noqa: PLC0415
        from kfm_dagster.followers.geoparquet.search import SearchCriteria  # noqa: PLC0415

        criteria = SearchCriteria(start=start, end=end, bbox=bbox, conditions=tuple(conditions))
        for collection in self.collections(names):
            for folder, table in self._tables(collection, criteria):
                for item in to_items(table):
                    yield f"{self.url}/{folder}/{item['id']}.json", item

    def collections(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the existing Collections of these ids (dataset or Collection); without ids, all.

        Raises UnknownNameError for an unknown name, ConfigurationError without a catalog.
        """
        existing = {path.partition("/")[0] for path in self._linked([ROOT], "child")}
        by_dataset = {contract.id: contract.stac.collection for contract in ContractRegistry.load(self._contracts)}
        wanted = {by_dataset.get(name, name) for name in names or existing}
        known = existing | set(by_dataset.values())
        if unknown := wanted - known:
            raise UnknownNameError(
                f"no Collection {', '.join(sorted(unknown))}", expected=f"one of {', '.join(sorted(known))}"
            )
        if not existing:
            raise ConfigurationError(
                "there is no catalog here",
                observed=self.url,
                expected="a catalog written by an ingest",
                next_step="ingest something (kfm demo), or correct KFM_HOME or KFM_CATALOG_URL",
            )
        return sorted(wanted & existing)

    def newest_time(self, dataset: str) -> datetime:
        """Return the end of a dataset's temporal extent. Raises UnknownNameError without Items."""
        for document in self.read([collection_path(name) for name in self.collections([dataset])]).values():
            if last := document["extent"]["temporal"]["interval"][0][1]:
                return datetime.fromisoformat(last)
        raise UnknownNameError(f"the catalog has no Items of {dataset}", observed=self.url)

    def unknown_properties(self, names: Sequence[str] | None, conditions: Sequence[PropertyCondition]) -> list[str]:
        """Return a line for each property that no Item of the newest days has: it may be misspelt."""
        from kfm_dagster.followers.geoparquet.search import properties_of  # noqa: PLC0415, see above

        known = properties_of(self._publisher, self.collections(names)) if self._lists else set()
        lines = []
        for name in sorted({name for name, *_ in conditions} - known) if known else ():
            near = get_close_matches(name, known)
            hint = f"similar: {', '.join(near)}" if near else f"known: {', '.join(sorted(known))}"
            lines.append(f"no Item of the newest days has the property {name!r}; {hint}")
        return lines

    def read(self, paths: Sequence[str]) -> Mapping[str, Any]:
        """Return the JSON documents that exist, by path."""
        contents = self._publisher.read(paths)
        try:
            return {path: orjson.loads(contents[path]) for path in paths if path in contents}
        except orjson.JSONDecodeError as error:
            raise PublishError(StacIssue.IO_ERROR, f"a file is not JSON: {error}") from error

    def _tables(self, collection: str, criteria: SearchCriteria) -> Iterator[tuple[str, pa.Table]]:
        from kfm_dagster.followers.geoparquet.days import years  # noqa: PLC0415, see above
        from kfm_dagster.followers.geoparquet.rows import to_table  # noqa: PLC0415
        from kfm_dagster.followers.geoparquet.search import matching, search  # noqa: PLC0415

        if self._lists and years(self._publisher, collection):
            yield from search(self._publisher, [collection], criteria)
            return
        for day in self._days(collection, criteria):
            for page in self._linked([day], "child"):
                if items := list(self.read(self._linked([page], "item")).values()):
                    yield posixpath.dirname(day), matching(to_table(items), criteria)

    def _days(self, collection: str, criteria: SearchCriteria) -> list[str]:
        """Return the paths of the days that may have Items of the criteria's time, earliest first."""
        days = sorted(self._linked(self._linked([collection_path(collection)], "child"), "child"))
        if criteria.end is not None:
            last = f"{criteria.end + LONGEST_ACCUMULATION:%Y-%m-%d}"
            days = [path for path in days if path.split("/")[-2] <= last]
        if criteria.start is not None and days:
            first = f"{criteria.start - self._longest_forecast(days[-1]):%Y-%m-%d}"
            days = [path for path in days if path.split("/")[-2] >= first]
        return days

    def _longest_forecast(self, day: str) -> timedelta:
        """Return how long after its folder's day an Item of the Collection may be valid."""
        items = self.read(self._linked(self._linked([day], "child")[:1], "item")[:1]).values()
        return LONGEST_FORECAST if any(REFERENCE in item["properties"] for item in items) else timedelta(days=1)

    def _linked(self, paths: Sequence[str], rel: str) -> list[str]:
        """Return the paths to which the documents at `paths` have links of the kind `rel`."""
        return [
            posixpath.normpath(posixpath.join(posixpath.dirname(path), link["href"]))
            for path, document in self.read(paths).items()
            for link in document["links"]
            if link["rel"] == rel
        ]


def equal(properties: Mapping[str, object]) -> tuple[PropertyCondition, ...]:
    """Return the conditions that properties have these values."""
    return tuple(
        (name, "=", value if isinstance(value, str) else json.dumps(value)) for name, value in properties.items()
    )


def time_range(time: Time | tuple[Time, Time]) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last moment of a time, both inclusive; None where it is open.

    Raises ConfigurationError for a text that is not a time, and for an end before the start.
    """
    first, last = time if isinstance(time, tuple) else _ends(time)
    try:
        start, end = _bounds(first)[0], _bounds(last)[1]
    except ValueError:
        raise ConfigurationError(
            "not a time",
            observed=repr(time),
            expected="a day (2025-12-03), a moment (2025-12-03T06:00Z) or START/END (.. is open)",
        ) from None
    if start is not None and end is not None and start > end:
        raise ConfigurationError("a time ends before it begins", observed=repr(time))
    return start, end


def checked_bbox(bbox: Sequence[float | str]) -> Bbox:
    """Return a box in degrees from numbers or texts. Raises ConfigurationError if it is invalid."""
    with suppress(TypeError, ValueError):
        west, south, east, north = map(float, bbox)
        if -180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90:
            return west, south, east, north
    raise ConfigurationError(
        "not a box in degrees",
        observed=repr(bbox),
        expected="west, south, east, north: west, east from -180 to 180, south below north",
    )


def to_pystac(address: str, item: dict[str, Any]) -> pystac.Item:
    """Return an Item as an Item of pystac, with the address of its file."""
    import pystac  # noqa: PLC0415, takes 0.1 s to import

    return pystac.Item.from_dict(item, href=address, preserve_dict=False)


def read_item(address: str) -> dict[str, Any]:
    """Return the Item at a path, s3:// or https:// address. Raises UnknownNameError if missing."""
    folder, _, name = address.rpartition("/")
    if (item := CatalogFiles(folder or ".").read([name]).get(name)) is None:
        raise UnknownNameError("there is no such Item", observed=address)
    return item  # type: ignore[no-any-return]


def _fields_of(item: Item) -> str:
    """Return the end of a sentence that lists an Item's fields; nothing without fields."""
    names = list(layers_of(item) or variables_of(item))
    return f"; the newest, {item['id']}, has {listed(item, names)}" if names else ""


def valid_time(item: Item) -> datetime:
    """Return the last time of an Item; `datetime` may be null if the Item has an interval."""
    properties = item["properties"]
    return datetime.fromisoformat(properties.get("end_datetime") or properties["datetime"])


def newness(item: Item, field: str | None, level: str | None) -> tuple[str, float, bool, str]:
    """Return a key that orders Items: by run, a run's shorter forecasts last; else by time.

    Of otherwise equal Items, an Item with a single field that matches `field` is last.
    """
    seconds, run = valid_time(item).timestamp(), item["properties"].get(REFERENCE)
    order = ("", seconds) if run is None else (run, -seconds)
    return (*order, matches(item, field, level) == 1, item["id"])


def _ends(time: Time) -> tuple[Time, Time]:
    if not isinstance(time, str):
        return time, time
    first, slash, last = time.partition("/")
    return first, last if slash else first


def _bounds(time: Time) -> tuple[datetime | None, datetime | None]:
    """Return a time's first and last moment; None twice for an open bound. Raises ValueError."""
    if time in {None, "..", ""}:
        return None, None
    moment = time if isinstance(time, datetime) else datetime.fromisoformat(str(time))
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    whole_day = isinstance(time, str) and _DAY.fullmatch(time)
    return moment, moment + timedelta(days=1, microseconds=-1) if whole_day else moment
