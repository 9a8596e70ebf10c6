"""Rollbacks and crashes: after one, what has to run again runs, and nothing else does.

A lakeFS branch is played over an S3 server, whose objects a commit keeps and a revert restores; Delta Lake's RESTORE is
the real one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.run_state.record import Outcome, RunState
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster_tests.run_state.conftest import STORES, Place
from kfm_dagster_tests.run_state.tables import Platform, Shout, Tables

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ALL = ["gusts", "alarms", "moisture"]
INPUTS = {"wind": "calm", "soil": "dry"}
BRANCH = "main"
OUTSIDE = [name for name in STORES if name not in {"sqlite", "postgresql"}]


class DeltaTables(MutableMapping[str, str]):
    """One Delta table of one row per name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> str:
        return str(self.table(name).to_pyarrow_table()["text"][0])

    def __setitem__(self, name: str, text: str) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.folder / name, pa.table({"text": [text]}), mode="overwrite")

    def __delitem__(self, name: str) -> None:
        shutil.rmtree(self.folder / name)

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self.folder.iterdir())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def table(self, name: str):  # type: ignore[no-untyped-def]
        from deltalake import DeltaTable

        return DeltaTable(self.folder / name)


@dataclass
class Branch(MutableMapping[str, str]):
    """A branch of a lakeFS repository as its S3 gateway shows it; its commits are kept here."""

    s3: S3Client
    repository: str
    name: str
    data: str = "tables"
    commits: list[dict[str, bytes]] = field(default_factory=list)

    def commit(self) -> int:
        self.commits.append({key: self._get(key) for key in self._keys("")})
        return len(self.commits) - 1

    def revert(self, commit: int) -> None:
        """Bring every object of the branch back to what it was in the commit; what came later is gone."""
        kept = self.commits[commit]
        for key in set(self._keys("")) - set(kept):
            self.s3.delete_object(Bucket=self.repository, Key=key)
        for key, content in kept.items():
            self.s3.put_object(Bucket=self.repository, Key=key, Body=content)

    def __getitem__(self, name: str) -> str:
        return self._get(f"{self.name}/{self.data}/{name}").decode()

    def __setitem__(self, name: str, text: str) -> None:
        self.s3.put_object(Bucket=self.repository, Key=f"{self.name}/{self.data}/{name}", Body=text.encode())

    def __delitem__(self, name: str) -> None:
        self.s3.delete_object(Bucket=self.repository, Key=f"{self.name}/{self.data}/{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(key.rpartition("/")[2] for key in self._keys(f"{self.data}/"))

    def __len__(self) -> int:
        return len(self._keys(f"{self.data}/"))

    def _get(self, key: str) -> bytes:
        return self.s3.get_object(Bucket=self.repository, Key=key)["Body"].read()

    def _keys(self, below: str) -> list[str]:
        listed = self.s3.list_objects_v2(Bucket=self.repository, Prefix=f"{self.name}/{below}")
        return [entry["Key"] for entry in listed.get("Contents", [])]


@pytest.fixture
def platform(database: Database, tmp_path: Path) -> Callable[[str, Tables], Platform]:
    """Three nodes over these tables, with run-state where the configuration says."""

    def build(configured: str, tables: Tables) -> Platform:
        tables.update(INPUTS)
        return Platform(database, Place(database, configured, BRANCH).open(), tables, tmp_path, BRANCH)

    return build


@pytest.mark.parametrize("restores_run_state", [False, True])
def test_after_a_delta_restore_only_nodes_whose_inputs_changed_run_again(
    platform: Callable[[str, Tables], Platform], tmp_path: Path, restores_run_state: bool
) -> None:
    tables = DeltaTables(tmp_path / "lake")
    found = platform(f"delta+{tmp_path / 'lake'}", tables)
    states = "main/_run_state"
    assert found.run("run") == ALL
    good = {name: tables.table(name).version() for name in ("wind", "gusts", "alarms", states)}
    tables["wind"] = "a wrong load"
    assert found.run("run") == ["gusts", "alarms"]

    restored = good if restores_run_state else ["wind"]
    for name in restored:
        tables.table(name).restore(good[name])
    assert found.run("run") == ([] if restores_run_state else ["gusts", "alarms"])
    assert found.run("run") == []
    assert tables["alarms"] == "CALM!!"
    assert found.agree()

    tables["wind"] = "a wrong load"  # applied once, and taken back since
    assert found.run("run") == ["gusts", "alarms"]
    assert found.agree()


def test_after_a_lakefs_revert_only_nodes_whose_inputs_changed_run_again(
    platform: Callable[[str, Tables], Platform], bucket: str, cloud: EmbeddedCloud
) -> None:
    branch = Branch(cloud.client("s3"), bucket, BRANCH)
    found = platform(f"s3://{bucket}", branch)
    assert found.run("monday") == ALL
    good = branch.commit()
    branch["wind"] = "a wrong load"
    assert found.run("monday") == ["gusts", "alarms"]
    assert found.run("tuesday") == []  # handed on from monday
    branch.commit()

    branch.revert(good)
    assert found.run("monday") == []  # the branch has data and run-state of the commit
    assert found.run("wednesday") == []
    assert found.agree()

    branch["wind"] = "a wrong load"
    # The database still tells that monday applied this content; the branch has nothing of it.
    assert found.run("thursday") == ["gusts", "alarms"]
    assert found.agree()
    assert found.run("friday") == []


def test_nodes_that_first_ran_after_the_commit_run_again_when_it_is_restored(
    platform: Callable[[str, Tables], Platform], bucket: str, cloud: EmbeddedCloud
) -> None:
    branch = Branch(cloud.client("s3"), bucket, BRANCH)
    found = platform(f"s3://{bucket}", branch)
    found.commit(Shout(branch, "wind", "gusts"), "run")
    early = branch.commit()
    assert found.run("run") == ["alarms", "moisture"]
    branch.revert(early)
    assert found.run("run") == ["alarms", "moisture"]
    assert found.agree()


@pytest.mark.clause("RSP-03", "RSP-04", "RSP-05", "RSP-07")
def test_the_run_contract_holds_over_every_store(place: Place, tmp_path: Path) -> None:
    place.branch = BRANCH
    found = Platform(place.database, place.open(), dict(INPUTS), tmp_path, BRANCH)
    assert found.run("run") == ALL
    for _ in range(2):
        assert found.run("run") == []
        assert found.run("other") == []
    assert {state.outcome for state in found.run_states.of_run("run")} == {Outcome.SUCCESS}
    assert {state.outcome for state in found.run_states.of_run("other")} == {Outcome.SKIPPED}
    found.tables["soil"] = "wet"
    assert found.run("other") == ["moisture"]
    assert found.agree()


@pytest.mark.clause("RSP-07", "RSP-10")
@pytest.mark.parametrize("place", OUTSIDE, indirect=True)
def test_a_crash_between_commit_and_record_leaves_a_node_to_run_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.branch = BRANCH
    found = Platform(place.database, place.open(), dict(INPUTS), tmp_path, BRANCH)
    put = type(found.run_states).put

    def dies(store: object, record: RunState, tx: Transaction) -> None:
        tx.after_commit(lambda: (_ for _ in ()).throw(ConnectionAbortedError()))
        put(found.run_states, record, tx)

    with monkeypatch.context() as patched:
        patched.setattr(type(found.run_states), "put", dies)
        with pytest.raises(ConnectionAbortedError):
            found.commit(Shout(found.tables, "wind", "gusts"), "run")
    assert found.run_states.of_run("run") == []
    assert found.run("run") == ALL
    assert {state.outcome for state in found.run_states.of_run("run")} == {Outcome.SUCCESS}
    assert found.run("run") == []
    assert found.run("other") == []
