"""An alert evaluator over a database, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kfm_dagster.alerts.evaluator import AlertEvaluator
from kfm_dagster.alerts.plan import ALERTS, AlertPlan
from kfm_dagster.configs import own_folder
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.alerts.recorded import Clock, Mailbox, Record, evaluator_of
from kfm_dagster_tests.followers.announcements.web_server import WebServer, open_web_server


@pytest.fixture
def plan() -> AlertPlan:
    """Return the rules of this release."""
    return AlertPlan.parse((own_folder() / ALERTS).read_text(encoding="utf-8"))


@pytest.fixture
def record(database: Database) -> Record:
    return Record(database)


@pytest.fixture
def web_server() -> Iterator[WebServer]:
    with open_web_server() as opened:
        yield opened


@pytest.fixture
def now() -> Clock:
    return Clock()


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


@pytest.fixture
def evaluator(database: Database, plan: AlertPlan, now: Clock, box: Mailbox) -> AlertEvaluator:
    return evaluator_of(database, plan, now, box)
