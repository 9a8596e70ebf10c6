"""The embedded PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from benchmarks.postgres import embedded_postgres
from kfm_dagster.errors import DatabaseUnavailableError


def test_postgres_keeps_its_data_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for statement in ("CREATE TABLE kept AS SELECT 1 AS one", "SELECT one FROM kept"):
        with embedded_postgres(tmp_path / "server") as url:
            assert url.startswith("postgresql+psycopg2://")
            engine = sa.create_engine(url)
            with engine.begin() as connection:
                connection.exec_driver_sql(statement)
            engine.dispose()
    assert not (tmp_path / "server" / "postmaster.pid").exists()


def test_postgres_runs_with_the_settings_it_is_given_and_refuses_what_is_none(tmp_path: Path) -> None:
    with embedded_postgres(tmp_path / "server", settings={"shared_buffers": "16MB", "work_mem": "5MB"}) as url:
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            shown = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in ("shared_buffers", "work_mem")]
        engine.dispose()
    assert shown == ["16MB", "5MB"]
    with (
        pytest.raises(DatabaseUnavailableError, match="the embedded PostgreSQL does not start"),
        embedded_postgres(tmp_path / "server", settings={"no_such_setting": "1"}),
    ):
        pass
    assert not (tmp_path / "server" / "postmaster.pid").exists()
