"""A URL with `plugin=kfm_keep` keeps its connection, also for callers that name a pool that keeps none."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from kfm_dagster.settings import Settings


@pytest.mark.clause("DAG-14")
@pytest.mark.parametrize(("query", "backends"), [("", 2), ("plugin=kfm_keep", 1)], ids=["plain", "kept"])
def test_a_url_with_the_plugin_keeps_its_connection(
    query: str, backends: int, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = f"{empty_postgres_url}{'&' if '?' in empty_postgres_url else '?'}{query}".rstrip("?&")
    monkeypatch.setenv("KFM_DAGSTER_DSN", joined)
    engine = sa.create_engine(Settings.load().dagster_dsn, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    pids = set()
    for _ in range(2):
        with engine.connect() as connection:
            pids.add(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
    engine.dispose()
    assert len(pids) == backends
