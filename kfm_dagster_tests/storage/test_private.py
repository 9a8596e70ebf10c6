"""New files of a data root are private to their user; existing files keep their permissions."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.lineage.batches import LineageFiles
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.settings import Settings
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster_tests.no_settings import unset_settings

pytestmark = pytest.mark.clause("SEC-07")


@pytest.fixture(autouse=True)
def _usual_umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    unset_settings(monkeypatch)
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_with_database_and_journals_is_private(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    pipeline = Pipeline.open(Settings.load(home=home))
    with pipeline.database.transaction() as tx:
        tx.run("schema.record", number=9999, name="x", sha256="x")
        modes = {path.name: oct(mode(path)) for path in home.iterdir()}
    assert modes == dict.fromkeys(("kfm.db", "kfm.db-wal", "kfm.db-shm"), "0o600")
    pipeline.close()
    assert [oct(mode(folder)) for folder in (home, home.parent)] == ["0o700", "0o700"]


def test_a_new_home_without_a_database_is_private(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", f"sqlite:///{tmp_path / 'elsewhere' / 'kfm.db'}"
    Pipeline.open(Settings.load(home=home, wal_dsn=elsewhere)).close()
    assert oct(mode(home)) == "0o700"
    stores = {name: f"s3://bucket/{name}" for name in ("storage_url", "catalog_url", "lineage_url")}
    Pipeline.open(Settings.load(home=tmp_path / "unused", wal_dsn=elsewhere, **stores)).close()
    assert not (tmp_path / "unused").exists()


def test_files_of_a_folder_store_are_private_even_if_the_store_s_root_is_not(tmp_path: Path) -> None:
    roots = {name: tmp_path / name for name in ("storage", "lineage", "made")}
    for name in ("storage", "lineage"):
        roots[name].mkdir(mode=0o755)
    store = open_store(str(roots["storage"]))
    Landing(store).land([SqsMessage(message_id="m", body="{}")])
    Artifacts(lambda: store).put(b"output", suffix="parquet")
    Artifacts(lambda: store, folder="evidence").put(b"{}", suffix="json")
    LineageFiles.open(str(roots["lineage"])).publish("openlineage/2025/12/run.json", b"{}")
    open_store(str(roots["made"]))
    created = [folder for folder in tmp_path.rglob("*") if folder.is_dir() and folder not in {*roots.values()}]
    assert {folder.name for folder in created} >= {"landing", "artifacts", "evidence", "openlineage", "2025"}
    assert {oct(mode(folder)) for folder in (*created, roots["made"])} == {"0o700"}
    assert oct(mode(roots["storage"])) == "0o755"


def test_existing_files_keep_their_permissions(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    file = home / "kfm.db"
    Database.open(f"sqlite:///{file}").dispose()
    file.chmod(0o640)
    Pipeline.open(Settings.load(home=home)).close()
    assert [oct(mode(home)), oct(mode(file))] == ["0o755", "0o640"]


def test_a_data_root_that_cannot_be_created_gives_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    elsewhere = f"sqlite:///{tmp_path / 'kfm.db'}"
    with pytest.raises(ConfigurationError, match=r"the data root cannot be created; observed .*file/home"):
        Pipeline.open(Settings.load(home=tmp_path / "file" / "home", wal_dsn=elsewhere))
