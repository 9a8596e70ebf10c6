"""Notifications: suppression, escalation, acknowledgement, crashes, concurrent evaluators."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest

from kfm_dagster.alerts.evaluator import AlertEvaluator
from kfm_dagster.alerts.plan import AlertPlan, AlertRule, Level, RuleTerms
from kfm_dagster.alerts.store import LEASE, Alert, AlertState
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.log import Decision
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.alerts.recorded import NOON, NOTIFY, PAGE, STAGE, TICKET, Clock, Mailbox, Record, evaluator_of
from kfm_dagster_tests.moments import DeathError

pytestmark = pytest.mark.clause("PCS-18")

HERE = f"path_desync: {STAGE} G3"
ME = Decision(actor="ann", reason="I am on it")


@pytest.fixture
def plan() -> AlertPlan:
    """Return a plan in which every rule notifies again after one hour and escalates after three."""
    terms = RuleTerms.model_validate(
        {"threshold": 1, "window": "24h", "level": "warning", "suppress": "1h", "escalate_after": "3h"}
    )
    return AlertPlan.model_validate(
        {
            "version": "1.0.0",
            "channels": ["notify", "page_ops", "open_ticket"],
            "levels": {"info": [], "warning": ["notify"], "critical": ["notify", "page_ops"]},
            "rules": {rule.value: terms for rule in AlertRule},
        }
    )


def record_event(record: Record, now: Clock) -> None:
    record.at = now.at
    record.gate("G3")


def test_an_alert_is_notified_once_during_its_suppression_and_again_afterwards(
    evaluator: AlertEvaluator, record: Record, now: Clock, box: Mailbox
) -> None:
    record_event(record, now)
    for minutes in (0, 1, 58, 1, 30):
        now.passes(minutes=minutes)
        evaluator.evaluate()
    # Sent at 0 and 60 min; 59 min is too early.
    assert box.sent == [(NOTIFY, f"[warning] {HERE}")] * 2
    assert [alert.notifications for alert in evaluator.store.listed()] == [2]
    assert "and is not acknowledged" in box.bodies[1]


def test_an_alert_that_resolves_and_fires_again_is_still_suppressed(
    evaluator: AlertEvaluator, record: Record, now: Clock, box: Mailbox
) -> None:
    short = evaluator.plan.rules.path_desync.model_copy(update={"window": timedelta(minutes=10)})
    rules = evaluator.plan.rules.model_copy(update={"path_desync": short})
    evaluator = replace(evaluator, plan=evaluator.plan.model_copy(update={"rules": rules}))
    over, fires = AlertState.RESOLVED, AlertState.FIRING
    for minutes, states, sent in ((0, [fires], 1), (11, [over], 1), (11, [over, fires], 1), (38, [over, over], 1)):
        now.passes(minutes=minutes)
        if fires in states:
            record_event(record, now)
        evaluator.evaluate()
        assert [alert.state for alert in evaluator.store.listed(resolved_since=NOON)] == states
        assert len(box.sent) == sent
    record_event(record, now)
    evaluator.evaluate()
    assert len(box.sent) == 2
    assert [alert.state for alert in evaluator.store.listed(resolved_since=NOON)] == [over, over, fires]
    assert [alert.alert_id for alert in evaluator.store.listed()] == [3]


def test_an_unacknowledged_alert_escalates_and_is_notified_immediately(
    evaluator: AlertEvaluator, record: Record, now: Clock, box: Mailbox
) -> None:
    record_event(record, now)
    evaluator.evaluate()
    now.passes(hours=2, minutes=59)
    evaluator.evaluate()
    assert [alert.level for alert in evaluator.store.listed()] == [Level.WARNING]
    now.passes(minutes=1)
    evaluator.evaluate()
    critical = f"[critical] {HERE}"
    # The last notification is a minute old, but an escalation is not suppressed.
    assert box.sent[2:] == [(NOTIFY, critical), (PAGE, critical)]
    assert "has lasted too long and is critical now" in box.bodies[-1]
    now.passes(hours=9)
    evaluator.evaluate()
    [alert] = evaluator.store.listed()
    assert (alert.level, alert.level_since) == (Level.CRITICAL, NOON + timedelta(hours=3))


def test_an_acknowledged_alert_is_not_notified_and_escalates_only_after_new_events(
    evaluator: AlertEvaluator, record: Record, now: Clock, box: Mailbox
) -> None:
    record_event(record, now)
    evaluator.evaluate()
    now.passes(hours=1)
    acknowledged = evaluator.store.acknowledge(1, ME)
    assert (acknowledged.state, acknowledged.acknowledged_by, acknowledged.acknowledged_at) == (
        "acknowledged",
        "ann",
        now.at,
    )
    now.passes(hours=3)
    evaluator.evaluate()
    assert len(box.sent) == 1
    record_event(record, now)
    evaluator.evaluate()
    assert [number for number, _ in box.sent[1:]] == [NOTIFY, PAGE]
    [alert] = evaluator.store.listed()
    assert (alert.state, alert.acknowledged_by) == (AlertState.FIRING, "ann")
    assert evaluator.store.acknowledge(1, Decision(actor="bob", reason="again")).acknowledged_by == "bob"


def test_a_divergence_is_also_notified_on_the_channels_of_the_replay_plan(
    database: Database, plan: AlertPlan, evaluator: AlertEvaluator, record: Record, now: Clock, box: Mailbox
) -> None:
    record.line(AuditKind.REPLAY, "diverged", run="r7")
    evaluator.evaluate()
    assert sorted(number for number, _ in box.sent) == [NOTIFY, PAGE, TICKET]
    assert "kfm runs show r7" in box.bodies[0]
    # A URL of two channels receives an alert once.
    box.sent.clear()
    two = evaluator_of(database, plan, now, box, urls="json://127.0.0.1:1/all page_ops=json://127.0.0.1:1/page")
    record.line(AuditKind.REPLAY, "diverged", run="r8")
    two.evaluate()
    assert sorted(number for number, _ in box.sent) == [1, 2]


def test_a_notification_without_urls_is_kept_until_urls_are_set(
    database: Database, plan: AlertPlan, record: Record, now: Clock, box: Mailbox
) -> None:
    without_urls = evaluator_of(database, plan, now, box, urls=None)
    record.gate("G3")
    without_urls.evaluate()
    assert without_urls.unheard() == ["notify", "page_ops", "open_ticket"]
    assert [alert.notifications for alert in without_urls.store.listed()] == [0]
    now.passes(seconds=30)
    evaluator_of(database, plan, now, box).evaluate()
    assert box.sent == [(NOTIFY, f"[warning] {HERE}")]
    with pytest.raises(
        ConfigurationError, match=r"KFM_ALERT_URLS is wrong; observed entry 2, channel pager; .* page_ops"
    ):
        evaluator_of(database, plan, now, box, urls="json://h pager=json://u:secret@h").evaluate()


def test_a_dead_channel_is_retried_and_does_not_delay_other_channels(
    evaluator: AlertEvaluator, record: Record, now: Clock, box: Mailbox
) -> None:
    box.dead = {NOTIFY}
    record.line(AuditKind.REPLAY, "diverged")
    record.gate("G3")
    for _ in range(2):
        done = evaluator.evaluate()
        assert done.dead == ["channel notify, URL 1 (Box): gone"]
    assert sorted(number for number, _ in box.sent) == [PAGE, TICKET]
    assert [alert.undelivered for alert in evaluator.store.listed()] == [1, 1]
    # Alerts are notified again while the channel is dead; once it works, it receives each alert once, as it is then.
    now.passes(hours=1)
    evaluator.evaluate()
    evaluator.store.acknowledge(1, ME)
    box.dead, box.sent, box.bodies = set(), [], []
    now.passes(minutes=4)
    assert evaluator.evaluate().delivered == 2
    assert [number for number, _ in box.sent] == [NOTIFY, NOTIFY]
    assert sum("ann has acknowledged it" in body for body in box.bodies) == 1
    assert evaluator.evaluate().delivered == 0


def test_a_pending_notification_stays_with_its_channel_when_the_urls_change(
    database: Database, plan: AlertPlan, record: Record, now: Clock, box: Mailbox
) -> None:
    record.gate("G3")
    box.dead = {NOTIFY}
    evaluator_of(database, plan, now, box).evaluate()
    box.dead = set()
    now.passes(minutes=5)
    other = evaluator_of(
        database, plan, now, box, urls="open_ticket=json://127.0.0.1:1/t page_ops=json://127.0.0.1:1/p"
    )
    assert (other.evaluate().delivered, box.sent) == (0, [])
    # Endpoint 1 is another channel's now, and that channel's notification does not wait for the pending one.
    both = evaluator_of(database, plan, now, box, urls="page_ops=json://127.0.0.1:1/p notify=json://127.0.0.1:1/n")
    now.passes(hours=3)
    both.evaluate()
    assert sorted(number for number, _ in box.sent) == [1, 2]
    again = evaluator_of(database, plan, now, box)
    assert again.evaluate().delivered == 1


def test_concurrent_evaluators_notify_each_alert_once(
    database: Database, plan: AlertPlan, record: Record, now: Clock, box: Mailbox
) -> None:
    for number in range(6):
        record.gate("G3", stage=f"d{number}.settle")
    together = threading.Barrier(4, timeout=60)

    def evaluates(_: int) -> list[Alert]:
        evaluator = evaluator_of(database, plan, now, box)
        together.wait()
        evaluator.evaluate()
        return evaluator.store.listed()

    with ThreadPoolExecutor(4) as pool:
        assert [len(alerts) for alerts in pool.map(evaluates, range(4))] == [6] * 4
    assert sorted(box.sent) == sorted((NOTIFY, f"[warning] path_desync: d{number}.settle G3") for number in range(6))


def test_a_notification_of_a_dead_evaluator_is_sent_once_by_another_evaluator(
    database: Database, plan: AlertPlan, record: Record, now: Clock, box: Mailbox
) -> None:
    record.gate("G3")
    dying = replace(evaluator_of(database, plan, now, box), send=Mock(side_effect=DeathError))
    with pytest.raises(DeathError):
        dying.evaluate()
    for wait, sent in ((timedelta(seconds=30), 0), (LEASE, 1), (LEASE, 1)):
        now.at += wait
        # As after a restart: a new evaluator over the same database.
        evaluator_of(database, plan, now, box).evaluate()
        assert len(box.sent) == sent
