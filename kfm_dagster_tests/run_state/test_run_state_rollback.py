"""After a rollback of data and run-state, only nodes with changed inputs or outputs run.

Small nodes read one table of words and write another table, both outside the database. A folder stands in for a lakeFS
branch: a commit copies it, a revert restores the copy. For Delta Lake the tests use its RESTORE.
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
from kfm_dagster_tests.run_state.conftest import Setup
from kfm_dagster_tests.stages.fake_node import FakeNode, execute, stage_runner

pytestmark = pytest.mark.one_database

ALL = ["gusts", "alarms", "moisture"]
INPUTS = {"wind": "calm", "soil": "dry"}
BRANCH = "main"


class DeltaTables:
    """Delta tables by name, each with one row."""

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
    """A lakeFS branch as its gateway shows it: data and run-state below one prefix."""

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
        """Restore the branch's state of the commit."""
        shutil.rmtree(self.repository)
        shutil.copytree(self.commits[commit], self.repository)

    def __getitem__(self, name: str) -> str:
        return (self.tables / name).read_text()

    def __setitem__(self, name: str, text: str) -> None:
        self.tables.mkdir(parents=True, exist_ok=True)
        (self.tables / name).write_text(text)


Tables = dict[str, str] | DeltaTables | Branch
"""The words, by the table's name."""


class Capitalize(FakeNode):
    """Write the words of one table in capitals to another."""

    def __init__(self, tables: Tables, reads: str, writes: str) -> None:
        super().__init__([], kind=f"words.{writes}")
        self.tables, self.reads, self.writes = tables, reads, writes

    def inputs(self) -> Sequence[ManifestEntry]:
        digest = hashlib.sha256(self.tables[self.reads].encode()).hexdigest()
        return [ManifestEntry(uri=f"table:{self.reads}", checksum=digest)]

    def transform(self) -> list[Envelope]:
        self.tables[self.writes] = self.tables[self.reads].upper() + "!"
        return super().transform()

    def verify(self, units: list[Envelope], /) -> None:
        assert self.tables[self.writes].endswith("!")


@dataclass
class Platform:
    """A pipeline of three nodes: wind > gusts > alarms, and separately soil > moisture."""

    database: Database
    run_states: RunStateStore
    tables: Tables
    folder: Path

    def run(self, run_id: str) -> list[str]:
        """Start every node under the run contract; return the nodes that were not skipped."""
        nodes = [
            Capitalize(self.tables, *names) for names in (("wind", "gusts"), ("gusts", "alarms"), ("soil", "moisture"))
        ]
        store = LocalStore(self.folder / "storage", mkdir=True)
        for node in nodes:
            execute(stage_runner(self.database, self.run_states, store, lakefs_branch=BRANCH), node, run_id=run_id)
        return [node.writes for node in nodes if node.calls]

    def is_consistent(self) -> bool:
        """Return whether every output corresponds to its input."""
        return all(
            self.tables[written] == self.tables[read].upper() + "!"
            for read, written in (("wind", "gusts"), ("gusts", "alarms"), ("soil", "moisture"))
        )


@pytest.fixture
def platform(database: Database, tmp_path: Path) -> Callable[[str, Tables], Platform]:
    """Return a function that creates three nodes over tables, with run-state at the given place."""

    def build(configured: str, tables: Tables) -> Platform:
        for name, text in INPUTS.items():
            tables[name] = text
        return Platform(database, Setup(database, configured, BRANCH).open(), tables, tmp_path)

    return build


@pytest.mark.parametrize("restores_run_state", [False, True])
def test_after_a_delta_restore_only_nodes_with_changed_inputs_run(
    platform: Callable[[str, Tables], Platform], tmp_path: Path, restores_run_state: bool
) -> None:
    tables = DeltaTables(tmp_path / "lake")
    platform_of_test = platform(f"delta+{tmp_path / 'lake'}", tables)
    states = "main/_run_state"
    assert platform_of_test.run("run") == ALL
    good = {name: tables.table(name).version() for name in ("wind", "gusts", "alarms", states)}
    tables["wind"] = "a wrong load"
    assert platform_of_test.run("run") == ["gusts", "alarms"]

    restored = good if restores_run_state else ["wind"]
    for name in restored:
        tables.table(name).restore(good[name])
    assert platform_of_test.run("run") == ([] if restores_run_state else ["gusts", "alarms"])
    assert platform_of_test.run("run") == []
    assert tables["alarms"] == "CALM!!"
    assert platform_of_test.is_consistent()

    tables["wind"] = "a wrong load"  # the nodes applied this content before, but the restore has undone it
    assert platform_of_test.run("run") == ["gusts", "alarms"]
    assert platform_of_test.is_consistent()


def test_after_a_lakefs_revert_only_nodes_with_changed_inputs_run(
    platform: Callable[[str, Tables], Platform], tmp_path: Path
) -> None:
    branch = Branch(tmp_path / "lakefs")
    platform_of_test = platform(f"{tmp_path}/lakefs", branch)
    assert platform_of_test.run("monday") == ALL
    good = branch.commit()
    branch["wind"] = "a wrong load"
    assert platform_of_test.run("monday") == ["gusts", "alarms"]
    branch["soil"] = "wet"
    assert platform_of_test.run("tuesday") == ["moisture"]  # the other nodes' output is reused from monday
    branch.commit()

    branch.revert(good)
    assert platform_of_test.run("monday") == []  # the branch has the commit's data and run-state
    assert platform_of_test.run("wednesday") == []
    assert platform_of_test.is_consistent()

    branch["wind"], branch["soil"] = "a wrong load", "wet"
    # The database still says that the runs monday and tuesday applied this content; the branch no longer has it.
    assert platform_of_test.run("thursday") == ALL
    assert platform_of_test.is_consistent()
    assert platform_of_test.run("friday") == []


@pytest.mark.clause("RSP-03", "RSP-04", "RSP-05", "RSP-07")
def test_the_run_contract_holds_over_every_store(setup: Setup, tmp_path: Path) -> None:
    setup.branch = BRANCH
    platform_of_test = Platform(setup.database, setup.open(), dict(INPUTS), tmp_path)
    assert platform_of_test.run("run") == ALL
    for _ in range(2):
        assert platform_of_test.run("run") == []
        assert platform_of_test.run("other") == []
    assert {state.outcome for state in platform_of_test.run_states.of_run("run")} == {Outcome.SUCCESS}
    assert {state.outcome for state in platform_of_test.run_states.of_run("other")} == {Outcome.SKIPPED}
    platform_of_test.tables["soil"] = "wet"
    assert platform_of_test.run("other") == ["moisture"]
    assert platform_of_test.is_consistent()
