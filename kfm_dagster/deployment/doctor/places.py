"""Places: the stores that are written to, the providers' buckets that are read, and the room on the disks here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.storage.answering import answering, refuse_forbidden
from kfm_dagster.storage.objects import ObjectStores

GIB = 1 << 30
LEAST_FREE, LITTLE_FREE = GIB, 5 * GIB
"""A day of mail, logs and SQLite's journals takes hundreds of megabytes; below a gigabyte a run may fail for it."""


def check_store(name: str, setting: str, place: str) -> Iterator[Diagnosis]:
    """Ask whether a store would take a file. Raises DependencyUnavailableError where it would not."""
    refuse_forbidden(place, what=name, setting=setting)
    yield ok(f"{name} {place} takes files")


def check_bucket(objects: ObjectStores, contract: DatasetContract, bucket: str) -> Iterator[Diagnosis]:
    """Ask whether a provider's bucket can be read. Raises DependencyUnavailableError where it cannot."""
    what = f"bucket {bucket} of {contract.id}"
    try:
        with answering(what, "KFM_ANONYMOUS or the credentials"):
            objects.ask(contract, bucket)
    except DependencyUnavailableError:
        raise
    except FileNotFoundError as error:
        yield warning(
            f"{what} is not there",
            observed=error,
            expected="a folder for each bucket below KFM_OBJECT_ROOT",
            next_step="make it, or unset KFM_OBJECT_ROOT to read the provider's objects",
        )
        return
    yield ok(f"{what} can be read")


def check_room(folders: Sequence[Path]) -> Iterator[Diagnosis]:
    """Look how much room each file system has that a folder of ours is on, once."""
    seen: set[int] = set()
    for folder in folders:
        there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        device = there.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        usage = shutil.disk_usage(there)
        if not usage.total:
            continue  # no disk at all (/proc); that it takes no file is the store's check to say
        free = usage.free
        facts = {
            "observed": f"{free / GIB:.1f} GiB free at {there}",
            "expected": f"{LITTLE_FREE // GIB} GiB at least",
            "next_step": "free some, or move KFM_HOME or DAGSTER_HOME to a larger disk",
        }
        if free < LEAST_FREE:
            yield fault("the disk is nearly full: the database and the runs stop with it", **facts)
        elif free < LITTLE_FREE:
            yield warning("there is little room on the disk", **facts)
        else:
            yield ok(f"{free / GIB:.0f} GiB free at {there}")
