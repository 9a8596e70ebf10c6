"""Days: the parts with the Items of a day, and the description that lists the parts.

A description is written after its parts and never replaced. The newest description whose parts all exist defines the
day. The late description of a stalled writer has no effect, because a newer description exists, or the late one's parts
have been removed. Does not belong here: the content of parts (`parts.py`), writing (`follower.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import orjson
from pydantic import TypeAdapter

from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.followers.geoparquet.parts import DayPart
from kfm_dagster.storage.publisher import Publisher

_FILE = re.compile(r"(\d{4}-\d{2}-\d{2})-(\d{16})-[0-9a-f]{12}\.(?:json|parquet)")


def lost(what: str) -> DependencyUnavailableError:
    """Return the error for missing files."""
    return DependencyUnavailableError(
        "files of a day's GeoParquet are missing", observed=what, next_step="kfm stac rebuild --place geoparquet"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """The Items of a day after the change `through`; each Item is in one of the parts."""

    day: str
    through: int = 0
    parts: tuple[DayPart, ...] = ()

    @property
    def rows(self) -> int:
        """Number of the day's Items."""
        return sum(part.rows for part in self.parts)

    @property
    def prefix(self) -> str:
        """Prefix of the names of the day's new files."""
        return f"{self.day}-{self.through:016d}"

    def after(self, through: int, parts: Iterable[DayPart]) -> Day:
        """Return the day's state after a later change."""
        return replace(self, through=through, parts=tuple(parts))

    def content(self) -> bytes:
        """Return the day's description."""
        return orjson.dumps(asdict(self) | {"items": self.rows}, option=orjson.OPT_SORT_KEYS)

    def name(self) -> str:
        """Return the name of the day's description, unique to the content."""
        return f"{self.prefix}-{hashlib.sha256(self.content()).hexdigest()[:12]}.json"


def folder(collection: str, year: str) -> str:
    """Return the folder of a year's files, below the catalog's root."""
    return f"{collection}/items/{year}"


def years(publisher: Publisher, collection: str) -> list[str]:
    """Return the years of a collection's files, earliest first. Raises PublishError."""
    return sorted(name for name in publisher.folders(f"{collection}/items") if name.isdigit())


def files_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the file names of a folder by day."""
    files: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if match := _FILE.fullmatch(name):
            files[match[1]].append(name)
    return files


def read_days(publisher: Publisher, where: str, files: Mapping[str, Sequence[str]]) -> dict[str, Day]:
    """Read the days of a folder that have a description; `files` are each day's file names.

    Raises PublishError. Raises DependencyUnavailableError if every description of a day names a missing part: the part
    is lost, or it was replaced after the folder was listed.
    """
    described = {
        day: sorted((name for name in names if name.endswith(".json")), reverse=True) for day, names in files.items()
    }
    waiting = {day: names for day, names in described.items() if names}
    days: dict[str, Day] = {}
    while waiting := {day: names for day, names in waiting.items() if day not in days}:
        if missing := [day for day, names in waiting.items() if not names]:
            raise lost(f"{where}: {', '.join(missing)}")
        contents = publisher.read([f"{where}/{names[0]}" for names in waiting.values()])
        for day, names in waiting.items():
            content = contents.get(f"{where}/{names.pop(0)}")
            candidate = None if content is None else _DESCRIPTION.validate_json(content)
            if candidate is not None and {part.name for part in candidate.parts} <= set(files[day]):
                days[day] = candidate
    return days


_DESCRIPTION = TypeAdapter(Day)
