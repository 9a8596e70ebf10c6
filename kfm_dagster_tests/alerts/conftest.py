"""An alert evaluator over a database, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest

from kfm_dagster.alerts.evaluator import AlertEvaluator
from kfm_dagster.alerts.plan import ALERTS, AlertPlan
from kfm_dagster.configs import own_folder
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.alerts.recorded import Clock, Mailbox, Record, evaluator_of


@pytest.fixture
def plan() -> AlertPlan:
    """Return the rules of this release."""
    return AlertPlan.parse((own_folder() / ALERTS).read_text(encoding="utf-8"))


@pytest.fixture
def record(database: Database) -> Record:
    return Record(database)


@pytest.fixture
def now() -> Clock:
    return Clock()


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


@pytest.fixture
def evaluator(database: Database, plan: AlertPlan, now: Clock, box: Mailbox) -> AlertEvaluator:
    return evaluator_of(database, plan, now, box)
