"""One run-state store per environment: whatever else is configured is refused with the names of both."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.run_state.choice import looked_up_states
from kfm_dagster.run_state.delta_store import DeltaRunState
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.store import RelationalRunState
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.moments import meanwhile
from kfm_dagster_tests.run_state.conftest import Place
from kfm_dagster_tests.run_state.test_run_state_stores import record

TABLE = "the table run_state of KFM_WAL_DSN"


@pytest.mark.clause("RSP-07")
@pytest.mark.parametrize(
    ("variable", "kind"),
    [("", RelationalRunState), ("{0}/runs", ObjectRunState), ("delta+{0}/runs", DeltaRunState)],
)
def test_a_pipeline_has_the_store_that_its_settings_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, kind: type
) -> None:
    monkeypatch.setenv("KFM_HOME", str(tmp_path))
    monkeypatch.setenv("KFM_RUN_STATE", variable.format(tmp_path))
    pipeline = Pipeline.open(Settings.load())
    assert isinstance(pipeline.stages.run_states, kind)
    pipeline.close()


@pytest.mark.clause("RSP-07")
def test_two_stores_in_the_variable_are_refused_with_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ["s3://a/b,delta+s3://c/d", "/a;/b", "delta+delta+/a", "s3://a s3://b", "delta+/a delta+/b"]:
        monkeypatch.setenv("KFM_RUN_STATE", value)
        with pytest.raises(ConfigurationError, match=r"KFM_RUN_STATE is wrong; .*one store per environment") as refusal:
            Settings.load()
        assert value in str(refusal.value)


@pytest.mark.clause("RSP-07")
@pytest.mark.parametrize("second", ["", "folder", "delta", "other folder"])
@pytest.mark.parametrize("first", ["", "folder", "delta"])
def test_a_second_store_of_one_environment_is_refused_with_both_names(
    database: Database, tmp_path: Path, first: str, second: str
) -> None:
    where = {"": "", "folder": f"{tmp_path}/a", "delta": f"delta+{tmp_path}/a", "other folder": f"{tmp_path}/b"}
    place = Place(database, where[first])
    place.put(record())
    other = replace(place, configured=where[second])
    if first == second:
        other.put(record(1))
        return
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(ConfigurationError, match="two run-state stores") as refusal:
            other.open()
        line = str(refusal.value)
        assert f"chooses {where[second] or TABLE}, " in line
        assert f"already in {where[first] or TABLE}; " in line
    assert place.open().get(record().dataset_id, record().run_id) == record()


@pytest.mark.parametrize("spelling", ["{0}/runs/", "../{1}/runs"])
def test_a_store_has_one_name_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.chdir(tmp_path)
    database = Database.open(f"sqlite:///{tmp_path / 'kfm.db'}")
    for configured in (f"{tmp_path}/runs", spelling.format(tmp_path, tmp_path.name)):
        Place(database, configured).put(record())
    database.dispose()


@pytest.mark.clause("RSP-07")
def test_a_lakefs_branch_is_where_its_s3_gateway_has_it(database: Database, bucket: str) -> None:
    mine = replace(record(), lakefs_branch="main")
    Place(database, f"lakefs://{bucket}/main", branch="main").put(mine)
    # One store under two names: the second one is no other.
    for other in (f"s3://{bucket}", f"s3://{bucket}/"):
        assert Place(database, other, branch="main").open().get(mine.dataset_id, mine.run_id) == mine


@pytest.mark.clause("RSP-07")
@pytest.mark.one_database
def test_of_two_stores_that_are_chosen_at_the_same_moment_one_is_refused(database: Database, tmp_path: Path) -> None:
    first, second = (Place(database, f"{tmp_path}/{name}") for name in ("first", "second"))
    # What this environment has is looked up twice; then the choice is written down.
    with (
        meanwhile(Failpoint.DATABASE_BEGIN, first.open, nth=3),
        pytest.raises(ConfigurationError, match="two run-state stores"),
    ):
        second.open()
    first.put(record())


@pytest.mark.one_database
def test_who_only_looks_settles_no_store(database: Database, tmp_path: Path) -> None:
    looked_up_states(database, Settings.load(home=tmp_path, run_state=f"{tmp_path}/runs"))
    assert not (tmp_path / "runs").exists()
    Place(database, f"{tmp_path}/others").put(record())


@pytest.mark.clause("RSP-07")
def test_a_delta_table_without_the_package_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    database = Database.open(f"sqlite:///{tmp_path / 'kfm.db'}")
    with pytest.raises(
        ConfigurationError, match=r"deltalake is not installed; next: pip install 'kfm-dagster\[delta\]'"
    ):
        Place(database, f"delta+{tmp_path}/runs").open()
    assert Place(database, "").open().counts(), "the refusal claims nothing"
    database.dispose()
