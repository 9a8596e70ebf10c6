"""Roots: folders and buckets that a deployment writes, marked with the deployment's id.

Two ledgers with the same catalog would silently overwrite each other's lists of Items, and the retention of one would
delete files that the other's pending units need. So each root has a file, never replaced, with the id of its
deployment's database. Belongs here: the roots, their owners, and adopting a root. Does not belong here: whether a root
is writable (`answering.py`), or when it is checked (`ingest/preflight.py`, `retention.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from obstore.exceptions import AlreadyExistsError, NotFoundError

from kfm_dagster.errors import ForeignRootError
from kfm_dagster.settings import Settings
from kfm_dagster.storage.answering import PROBE, answering
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store

MARKER = ".kfm-deployment.json"
"""File of a root that names its deployment; no document of catalog or lineage links to it."""
_NO_CONTENT = re.compile(rf"(.*/)?({re.escape(MARKER)}|{re.escape(PROBE)}|\.staging/.*)")
"""Files that an empty root may have: marks and probes, also of roots inside it, and staged files of dead processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """A folder or s3://bucket/prefix that a deployment writes, and the setting that names it."""

    name: str
    setting: str
    location: str
    served: bool = False
    """Whether a web server may read the root, if it is a folder."""

    def holder(self) -> str | None:
        """Return the deployment id of the root's mark; None without a mark."""
        if not self._exists():
            return None
        try:
            with self._answering():
                content = bytes(open_store(self.location).get(MARKER).bytes())
        except (FileNotFoundError, NotFoundError):
            return None
        try:
            return str(json.loads(content)["deployment_id"])
        except (ValueError, TypeError, KeyError):
            return "an unreadable id"

    def is_empty(self) -> bool:
        """Return whether the root has only marks, probes and staged files."""
        if not self._exists():
            return True
        with self._answering():
            pages = open_store(self.location).list()
            return all(_NO_CONTENT.fullmatch(entry["path"]) for page in pages for entry in page)

    def mark(self, deployment: str) -> None:
        """Mark the root unless it is marked; of concurrent processes only the first writes the mark."""
        content = json.dumps({"deployment_id": deployment}).encode() + b"\n"
        if self.served and "://" not in self.location:
            # Opening a store creates a folder that no other user may read.
            Path(self.location).mkdir(parents=True, exist_ok=True)
        with self._answering(), suppress(AlreadyExistsError):
            open_store(self.location).put(MARKER, content, mode="create")

    def refuse_other(self, holder: str | None, deployment: str) -> None:
        """Raise ForeignRootError if the holder is another deployment."""
        if holder not in {None, deployment}:
            raise ForeignRootError(
                f"{self.name} {self.location} is another deployment's",
                observed=f"{holder} in its {MARKER}",
                expected=f"this ledger's id, {deployment or 'assigned when it is created'}",
                next_step=f"correct KFM_WAL_DSN, KFM_HOME or {self.setting} (docs/deploy.md)",
            )

    def _exists(self) -> bool:
        # Opening the store of a folder creates the folder.
        return "://" in self.location or Path(self.location).is_dir()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        with answering(f"{self.name} {self.location}", self.setting):
            yield


def storage_root(settings: Settings) -> Root:
    """Return the root of landing zone, artifacts and evidence."""
    return Root(name="storage", setting="KFM_STORAGE_URL", location=settings.storage)


def roots(settings: Settings) -> list[Root]:
    """Return every root of a deployment; GeoParquet is in the root of the catalog."""
    places = [
        storage_root(settings),
        Root(name="catalog", setting="KFM_CATALOG_URL", location=settings.catalog, served=True),
        Root(name="lineage", setting="KFM_LINEAGE_URL", location=settings.lineage),
        Root(name="virtual stores", setting="KFM_VIRTUAL_URL", location=settings.virtual_url, served=True),
    ]
    return [root for root in places if root.location]


def deployment_id(database: Database) -> str:
    """Return the id that a database received at its creation."""
    with database.snapshot() as view:
        return str(view.run("deployment.values", fact="id").scalar_one())


def hold(chosen: Sequence[Root], deployment: str, *, adopt: bool = False) -> None:
    """Mark unmarked roots as roots of a deployment; with `adopt` also unmarked roots with files.

    Raises ForeignRootError, before any root is marked, for another deployment's root and, without `adopt`, for an
    unmarked root with files; StoreAccessError and DependencyUnavailableError if a store refuses or does not answer.
    """
    for root in refuse_foreign(chosen, deployment, adopt=adopt):
        root.mark(deployment)
        # Another deployment may have marked the root first.
        root.refuse_other(root.holder(), deployment)


def refuse_foreign(chosen: Sequence[Root], deployment: str, *, adopt: bool = False) -> list[Root]:
    """Return the unmarked roots that the deployment may mark, without marking; raises as `hold`."""
    with ThreadPoolExecutor(len(chosen)) as pool:
        holders = list(pool.map(Root.holder, chosen))
    for root, holder in zip(chosen, holders, strict=True):
        root.refuse_other(holder, deployment)
    free = [root for root, holder in zip(chosen, holders, strict=True) if holder is None]
    for root in free:
        # A process of the same deployment may have marked the root and written files since the first check.
        if not adopt and not root.is_empty() and root.holder() != deployment:
            raise ForeignRootError(
                f"{root.name} {root.location} has files and no {MARKER}: their deployment is unknown",
                expected="an empty location, or a root of this deployment",
                next_step=f"correct {root.setting}, or run kfm init --adopt if this ledger wrote them",
            )
    return free
