"""Reader of GHCN-Daily: a row for each station, day and element, in gzipped CSV or Parquet.

Belongs here: stations, days and elements of the rows, and the quality flags that occur; of Parquet only the footer's
statistics. Does not belong here: the values, and the places of the stations, which no row has. If CSV is larger than
MAX_OBJECT_BYTES, or unpacks to more than MAX_TEXT_BYTES, only its beginning is read (`text_lines.py`), with a finding.

Source: NOAA NCEI, readme-by_station.txt and readme-by_year.txt (columns), readme.txt, section III (elements and flags).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest, table, unchecked
from kfm_dagster.readers.parquet_footer import read_footer
from kfm_dagster.readers.text_lines import BEGINNING_BYTES, TextLines, cube, is_time, span

FIRST_BYTES = BEGINNING_BYTES
MAX_OBJECT_BYTES = 4 * 1024 * 1024
"""Maximum size of CSV that is read to its end. 250 years of 10 elements of a station have 3 MB, a year of the world has
170 MB."""
MAX_TEXT_BYTES = 32 * 1024 * 1024
"""Maximum unpacked bytes. Real objects unpack to 8 times their size."""
MAX_LINE_BYTES = 1024
MAX_STATIONS = 500_000
"""Maximum stations: the network has 130,000."""
MAX_ELEMENTS = 500
"""Maximum elements: the documentation has 150."""

COLUMNS = ("ID", "DATE", "ELEMENT", "DATA_VALUE", "M_FLAG", "Q_FLAG", "S_FLAG", "OBS_TIME")
_HEADER = b"ID,DATE,ELEMENT"
"""Beginning of the header line, which only some objects have."""
_WORLD = {"type": "Polygon", "coordinates": [[(-180, -90), (180, -90), (180, 90), (-180, 90), (-180, -90)]]}
"""Area of the network: the geometry of objects with several stations."""
_FLAGS = {
    "D": "failed duplicate check",
    "G": "failed gap check",
    "I": "failed internal consistency check",
    "K": "failed streak/frequent-value check",
    "L": "failed check on length of multiday period",
    "M": "failed megaconsistency check",
    "N": "failed naught check",
    "O": "failed climatological outlier check",
    "R": "failed lagged range check",
    "S": "failed spatial consistency check",
    "T": "failed temporal consistency check",
    "W": "temperature too warm for snow",
    "X": "failed bounds check",
    "Z": "flagged as a result of an official investigation",
}
"""Meanings of quality flags; a value that failed no check has no flag."""


@dataclass(kw_only=True, slots=True)
class _Rows:
    """Summary of an object's rows."""

    header: bool | None = None
    """Whether the first line names the columns; None before it was read."""
    count: int = 0
    odd: int = 0
    """Rows that do not have the number of columns of COLUMNS, or have no day."""
    first: bytes = b"9" * 8
    last: bytes = b""
    stations: set[bytes] = field(default_factory=set)
    elements: Counter[bytes] = field(default_factory=Counter)
    flags: set[bytes] = field(default_factory=set)
    columns: Sequence[str] = COLUMNS
    unread: str = ""

    def take(self, lines: Sequence[bytes]) -> None:
        """Add lines. Raises ReadError."""
        if lines and self.header is None:
            self.header = lines[0].startswith(_HEADER)
            lines = lines[self.header :]
        rows = [row for line in lines if len(row := line.split(b",")) == len(COLUMNS)]
        ordered = sorted({row[1] for row in rows})
        if ordered and not (is_time(ordered[0]) and is_time(ordered[-1])):
            rows = [row for row in rows if is_time(row[1])]
        self.count += len(lines)
        self.odd += len(lines) - len(rows)
        if not rows:
            return
        stations, days, elements, _, _, flags, *_ = zip(*rows, strict=True)
        self.first, self.last = min(self.first, *days), max(self.last, *days)
        self.stations.update(stations)
        self.elements.update(elements)
        self.flags.update(flags)
        if len(self.stations) > MAX_STATIONS or len(self.elements) > MAX_ELEMENTS:
            counted = f"rows of {len(self.stations)} stations and {len(self.elements)} elements"
            raise ReadError(
                MetadataIssue.RESOURCE_LIMIT, f"{counted}; up to {MAX_STATIONS} and {MAX_ELEMENTS} are read"
            )


def read_ghcn_daily(request: ReadRequest) -> HeaderMetadata:
    """Read the days of a station or of a year.

    `request.groups` has `station` or `year`, and for Parquet `element`. `start` and `end` are the first and last day of
    the rows at 00:00 UTC (although days are local), `datetime` is `start`. If the end was not reached
    (`ghcn:end-known` is False), `end` is the last day that was read. The geometry is the network's area for several
    stations, and empty for a single station, whose place is unknown. Raises ReadError: UNREADABLE_FORMAT,
    TRUNCATED_OBJECT, RESOURCE_LIMIT, INVALID_TIME_RANGE and INCOMPLETE_PRODUCT_METADATA for the bytes, TIME_MISMATCH
    and PLATFORM_MISMATCH against the key.
    """
    groups, packed = request.groups, "element" not in request.groups
    rows = _csv(request) if packed else _parquet(request)
    first, last = span(rows.first, rows.last, year=groups.get("year"))
    if "station" in groups and (others := rows.stations - {groups["station"].encode("ascii")}):
        text = f"a row is of station {min(others)[:20]!r}; the key names {groups['station']}"
        raise ReadError(MetadataIssue.PLATFORM_MISMATCH, text)
    elements = sorted(element.decode("utf-8", "replace") for element in rows.elements)
    properties = _properties(rows) | ({"ghcn:csv": {"delimiter": ",", "header": bool(rows.header)}} if packed else {})
    odd = f"{rows.odd} of {rows.count} rows do not have {len(COLUMNS)} columns, or have no day" if rows.odd else ""
    return HeaderMetadata(
        start=first,
        end=last,
        datetime=first,
        geometry=_WORLD if len(rows.stations) > 1 else {},
        properties=properties | cube(first, last, {name: _described(name) for name in elements if name.isalnum()}),
        native={
            "rows": rows.count,
            "odd_rows": rows.odd,
            "elements": {name.decode("utf-8", "replace"): count for name, count in rows.elements.items()},
        },
        findings=unchecked(rows.unread, odd),
    )


def _csv(request: ReadRequest) -> _Rows:
    rows = _Rows()
    text = TextLines(
        source=request.source, most_bytes=MAX_OBJECT_BYTES, most_line=MAX_LINE_BYTES, most_unpacked=MAX_TEXT_BYTES
    )
    for lines in text:
        rows.take(lines)
    if text.rest and not text.unread:
        rows.take([text.rest])
    rows.unread = text.unread
    return rows


def _parquet(request: ReadRequest) -> _Rows:
    footer = read_footer(request.source)
    if not {"ID", "DATE", "DATA_VALUE"} <= set(footer.columns):
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"not columns of GHCN-Daily: {str(footer.columns)[:200]}")
    first, last = footer.ranges.get("DATE", (b"", b""))
    return _Rows(
        count=footer.rows,
        first=first,
        last=last,
        stations=set(footer.ranges.get("ID", ())),
        elements=Counter({request.groups["element"].encode("ascii"): footer.rows}),
        columns=footer.columns,
    )


def _properties(rows: _Rows) -> dict[str, Any]:
    whole, single = not rows.unread, len(rows.stations) == 1
    station = next(iter(rows.stations), b"")
    optional = {
        "platform": station.decode("ascii") if single and station.isalnum() else None,
        "ghcn:rows": rows.count if whole else None,
        # Parquet's statistics have the least and the greatest identifier, so several stations cannot be counted.
        "ghcn:station-count": len(rows.stations) if whole and (single or rows.header is not None) else None,
        "ghcn:end-known": None if whole else False,
        "ghcn:quality-codes": {flag: text for flag, text in _FLAGS.items() if flag.encode() in rows.flags} or None,
    }
    return {"ghcn:columns": list(rows.columns)} | {name: value for name, value in optional.items() if value is not None}


@cache
def _elements() -> Sequence[tuple[str, Mapping[str, Any]]]:
    rows = []
    for row in table("ghcn_elements.csv"):
        unit = {"unit": row["unit"]} if row["unit"] else {}
        described = {"description": row["description"], **unit, "ghcn:scale": float(row["scale"])}
        rows.append((row["element"].replace("#", "?"), described))
    return rows


def _described(element: str) -> Mapping[str, Any]:
    """Return description, unit and scale of an element; scale 1 for an undocumented element."""
    known = (described for pattern, described in _elements() if fnmatchcase(element, pattern))
    return next(known, {"ghcn:scale": 1.0})
