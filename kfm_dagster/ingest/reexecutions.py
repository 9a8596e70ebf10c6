"""Re-executions: which runs of Dagster share a root run, and when each was at work.

Run-state and intents are kept under the root run's id. Which re-execution a person means is known to Dagster's own run
storage only, which is read here as the database that it is, without Dagster.
Belongs here: finding that storage and asking it. Does not belong here: what a run did (`explanation.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.storage.statements import statement

DRIVER = "postgresql+psycopg2"
SCHEMA = "dagster"
"""Schema of Dagster's tables, so that neither they nor its migrations meet the ledger's in one database."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reexecution:
    """A run that another run's id stands for. `started_at` None: it waits; `ended_at` None: it is at work."""

    run_id: str
    root_run_id: str
    started_at: datetime | None
    ended_at: datetime | None


class Reexecutions:
    """Dagster's run storage below a DAGSTER_HOME, as far as it can be read; without one there are no re-executions."""

    def __init__(self, dagster_home: Path, *, environment: Mapping[str, str] = os.environ) -> None:
        self._url = _storage_url(dagster_home, environment)

    def beginning(self, beginning: str, *, limit: int) -> Sequence[Reexecution]:
        """Return the re-executions whose id begins so."""
        return self._ask("dagster_runs.beginning", beginning=beginning, limit=limit)

    def of(self, root_run_id: str) -> Sequence[Reexecution]:
        """Return the re-executions of a run, oldest first."""
        return self._ask("dagster_runs.of_root", root_run_id=root_run_id)

    def _ask(self, name: str, **parameters: Any) -> Sequence[Reexecution]:
        if self._url is None:
            return []
        engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        try:
            with engine.connect() as connection:
                return [
                    _reexecution(row) for row in connection.execute(statement(engine.dialect.name, name), parameters)
                ]
        except SQLAlchemyError:
            # The ledger's side of a run can be told without it.
            return []
        finally:
            engine.dispose()


def _reexecution(row: Any) -> Reexecution:
    return Reexecution(
        run_id=row.run_id,
        root_run_id=row.root_run_id,
        started_at=None if row.start_time is None else datetime.fromtimestamp(row.start_time, UTC),
        ended_at=None if row.end_time is None else datetime.fromtimestamp(row.end_time, UTC),
    )


def dagster_url(dsn: str) -> URL:
    """Return KFM_DAGSTER_DSN as the URL whose connections find Dagster's schema, and no other."""
    url = make_url(dsn)
    given = url.query.get("options", ())
    options = " ".join([given] if isinstance(given, str) else given)
    return url.update_query_dict({"options": f"{options} -csearch_path={SCHEMA}".strip()})


def _storage_url(home: Path, environment: Mapping[str, str]) -> URL | None:
    """Return where `dagster.yaml` puts the runs: PostgreSQL when it or KFM_DAGSTER_DSN says so, else SQLite files."""
    file = home / "dagster.yaml"
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError, yaml.YAMLError):
        return None
    storage = _member(config, "storage")
    if postgres := _member(storage, "postgres"):
        return _postgres_url(postgres, environment)
    if _member(storage, "custom") and (dsn := environment.get("KFM_DAGSTER_DSN")):
        return dagster_url(dsn).set(drivername=DRIVER)
    base = _text(_member(storage, "sqlite").get("base_dir"), environment) or str(home)
    runs = Path(base) / "history" / "runs.db"
    # Opened for reading only: asking must not make what it asks for.
    return make_url(f"sqlite:///file:{runs.absolute()}?mode=ro&uri=true") if runs.is_file() else None


def _postgres_url(config: Mapping[str, Any], environment: Mapping[str, str]) -> URL | None:
    if url := _text(config.get("postgres_url"), environment):
        return make_url(url).set(drivername=DRIVER)
    parts = {name: _text(value, environment) for name, value in _member(config, "postgres_db").items()}
    if not parts.get("hostname"):
        return None
    return URL.create(
        DRIVER,
        username=parts.get("username"),
        password=parts.get("password"),
        host=parts["hostname"],
        port=int(parts.get("port") or 5432),
        database=parts.get("db_name"),
    )


def _member(config: Any, name: str) -> Mapping[str, Any]:
    found = config.get(name) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: Any, environment: Mapping[str, str]) -> str | None:
    """Return a value of dagster.yaml: itself, or the variable that it names (`env: NAME`)."""
    if isinstance(value, dict):
        return environment.get(str(value.get("env")))
    return None if value is None else str(value)
