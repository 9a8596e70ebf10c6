"""Rollbacks and crashes: after one, what has to run again runs, and nothing else does.

Small nodes read one table of words and write another, both outside the database. A lakeFS branch is played by a folder,
which a commit keeps and a revert restores; Delta Lake's RESTORE is the real one.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from obstore.store import LocalStore

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.run_state.conftest import Place
from kfm_dagster_tests.stages.fake_node import FakeNode, execute, stage_runner

ALL = ["gusts", "alarms", "moisture"]
INPUTS = {"wind": "calm", "soil": "dry"}
BRANCH = "main"


class DeltaTables:
    """One Delta table of one row per name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> str:
        return str(self.table(name).to_pyarrow_table()["text"][0])

    def __setitem__(self, name: str, text: str) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.folder / name, pa.table({"text": [text]}), mode="overwrite")

    def table(self, name: str):
        from deltalake import DeltaTable

        return DeltaTable(self.folder / name)


@dataclass
class Branch:
    """A branch of a lakeFS repository, as its gateway shows it: data and run-state below one prefix."""

    repository: Path
    commits: list[Path] = field(default_factory=list)

    @property
    def tables(self) -> Path:
        return self.repository / BRANCH / "tables"

    def commit(self) -> int:
        self.commits.append(self.repository.with_name(f"commit-{len(self.commits)}"))
        shutil.copytree(self.repository, self.commits[-1])
        return len(self.commits) - 1

    def revert(self, commit: int) -> None:
        """Bring the branch back to what it was in the commit; what came later is gone."""
        shutil.rmtree(self.repository)
        shutil.copytree(self.commits[commit], self.repository)

    def __getitem__(self, name: str) -> str:
        return (self.tables / name).read_text()

    def __setitem__(self, name: str, text: str) -> None:
        self.tables.mkdir(parents=True, exist_ok=True)
        (self.tables / name).write_text(text)


Tables = dict[str, str] | DeltaTables | Branch
"""Where the words stand, by name."""


class Shout(FakeNode):
    """Write the words of one table in capitals into another."""

    def __init__(self, tables: Tables, reads: str, writes: str) -> None:
        super().__init__([], kind=f"words.{writes}")
        self.tables, self.reads, self.writes = tables, reads, writes

    def inputs(self) -> Sequence[ManifestEntry]:
        digest = hashlib.sha256(self.tables[self.reads].encode()).hexdigest()
        return [ManifestEntry(uri=f"table:{self.reads}", checksum=digest)]

    def transform(self) -> list[Envelope]:
        self.tables[self.writes] = self.tables[self.reads].upper() + "!"
        return super().transform()

    def verify(self, made: list[Envelope], /) -> None:
        assert self.tables[self.writes].endswith("!")


@dataclass
class Platform:
    """A pipeline of three nodes: wind > gusts > alarms, and beside them soil > moisture."""

    database: Database
    run_states: RunStateStore
    tables: Tables
    folder: Path
    branch: str

    def run(self, run_id: str) -> list[str]:
        """Run every node under the run contract; return which of them worked."""
        nodes = [Shout(self.tables, *names) for names in (("wind", "gusts"), ("gusts", "alarms"), ("soil", "moisture"))]
        for node in nodes:
            self.commit(node, run_id)
        return [node.writes for node in nodes if node.calls]

    def commit(self, node: Shout, run_id: str) -> None:
        store = LocalStore(self.folder / "storage", mkdir=True)
        execute(stage_runner(self.database, self.run_states, store, lakefs_branch=self.branch), node, run_id=run_id)

    def agree(self) -> bool:
        """Whether every output is what its input gives: no success without its effect."""
        return all(
            self.tables[written] == self.tables[read].upper() + "!"
            for read, written in (("wind", "gusts"), ("gusts", "alarms"), ("soil", "moisture"))
        )


@pytest.fixture
def platform(database: Database, tmp_path: Path) -> Callable[[str, Tables], Platform]:
    """Three nodes over these tables, with run-state where the configuration says."""

    def build(configured: str, tables: Tables) -> Platform:
        for name, text in INPUTS.items():
            tables[name] = text
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
    platform: Callable[[str, Tables], Platform], tmp_path: Path
) -> None:
    branch = Branch(tmp_path / "lakefs")
    found = platform(f"{tmp_path}/lakefs", branch)
    assert found.run("monday") == ALL
    good = branch.commit()
    branch["wind"] = "a wrong load"
    assert found.run("monday") == ["gusts", "alarms"]
    branch["soil"] = "wet"
    assert found.run("tuesday") == ["moisture"]  # the others' output is handed on from monday
    branch.commit()

    branch.revert(good)
    assert found.run("monday") == []  # the branch has data and run-state of the commit
    assert found.run("wednesday") == []
    assert found.agree()

    branch["wind"], branch["soil"] = "a wrong load", "wet"
    # The database still tells that monday and tuesday applied this content; the branch has nothing of it.
    assert found.run("thursday") == ALL
    assert found.agree()
    assert found.run("friday") == []


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
