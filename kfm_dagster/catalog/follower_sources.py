"""Load followers from entry points of the group `kfm_dagster.followers`.

Belongs here: loading entry points, and handling their failures. Does not belong here: any follower
(`kfm_dagster/followers/`), because the pipeline imports this module, and must not import a follower.
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import ClassVar, Self

from kfm_dagster.catalog.changes import Follower
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import KfmError
from kfm_dagster.redaction import error_text
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.publisher import Publisher

_LOG = logging.getLogger(__name__)

GROUP = "kfm_dagster.followers"


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowerContext:
    """Parts of a pipeline for followers: the catalog's files, and stores to read objects."""

    database: Database
    catalog: Publisher
    objects: ObjectStores
    clock: Callable[[], datetime]


class FollowerSource(ABC):
    """Base of the classes that entry points name; a source creates the configured followers."""

    title: ClassVar[str] = ""
    """Name of the source's check in `kfm doctor`; by default the name of the entry point."""

    def __init__(self, settings: Settings, registry: ContractRegistry) -> None:
        """Read the source's configuration, before a database exists. Raises ConfigurationError."""
        self.settings = settings
        self.registry = registry

    @abstractmethod
    def followers(self, context: FollowerContext) -> Sequence[Follower]:
        """Return the configured followers, without connecting to anything."""

    def ask(self) -> Iterator[str | KfmError]:
        """Check the followers for `kfm doctor`; yield successes and errors, or raise KfmError."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class FollowerSources:
    """Sources, and errors of sources that cannot be loaded, by the names of their entry points."""

    loaded: Mapping[str, FollowerSource]
    errors: Mapping[str, str]

    @classmethod
    def load(cls, settings: Settings, registry: ContractRegistry) -> Self:
        """Load installed sources. Raises KfmError; another error leaves out only the failing source."""
        loaded: dict[str, FollowerSource] = {}
        errors: dict[str, str] = {}
        for entry in sorted(_installed(tuple(sys.path)), key=lambda entry: entry.name):
            try:
                loaded[entry.name] = _source(entry.load(), settings, registry)
            except KfmError:
                raise
            except Exception as error:
                errors[entry.name] = f"{entry.value}: {error_text(error)}"
                _LOG.warning("follower %s is left out: %s", entry.name, errors[entry.name])
        return cls(loaded=loaded, errors=errors)

    def followers(self, context: FollowerContext) -> list[Follower]:
        """Return the followers of all sources that do not fail; fewest names in `after` first."""
        followers: list[Follower] = []
        for name, source in self.loaded.items():
            try:
                followers += source.followers(context)
            except Exception as error:
                _LOG.warning("follower %s is left out: %s", name, error_text(error))
        return sorted(followers, key=lambda follower: len(follower.after))


def _source(kind: object, settings: Settings, registry: ContractRegistry) -> FollowerSource:
    if not (isinstance(kind, type) and issubclass(kind, FollowerSource)):
        raise TypeError("the entry point names no FollowerSource")
    return kind(settings, registry)


@cache
def _installed(path: tuple[str, ...]) -> EntryPoints:  # noqa: ARG001, the cache's key; reading takes 50 ms
    return entry_points(group=GROUP)
