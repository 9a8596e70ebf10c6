"""Messages: queue, dead-letter queue and their rules, senders' certificates, and the clock.

Does not belong here: the creation of a queue (`deployment/provisioning.py`), or its messages (`kfm dlq`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.deployment.doctor.finding import Diagnosis, fault, ok, warning
from kfm_dagster.deployment.provisioning import DLQ_RETENTION, LEASE_MARGIN_SECONDS
from kfm_dagster.errors import KfmError, QueueUnavailableError
from kfm_dagster.notifications.authenticity import Signatures
from kfm_dagster.notifications.messages import QueueRules
from kfm_dagster.notifications.sqs import Queue, connect
from kfm_dagster.plural import counted
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.clock.reading import ClockLog, ClockReading, ClockRule, ClockState, decide
from kfm_dagster.telemetry.clock.sources import ask_date, measure

SHORT_RETENTION = timedelta(days=4)
"""SQS's default; a deployment that is down over a long weekend still loses nothing."""
SHOWN_TOPICS = 3
_CREATE = "kfm queue create --dataset NAME --update"


def check_queue(settings: Settings, registry: ContractRegistry, *, today: date) -> Iterator[Diagnosis]:
    """Check the primary queue. Topics that do not deliver today need not be in its policy."""
    name = settings.sqs_primary_queue
    rules = _rules(connect(settings, name=name))
    yield ok(f"queue {name} answers")
    yield _visibility(settings, rules)
    yield from _redrive(settings, registry, rules)
    if rules.retention < SHORT_RETENTION:
        yield warning(
            "waiting messages are deleted too soon",
            observed=f"MessageRetentionPeriod {rules.retention}",
            expected=f"{SHORT_RETENTION} at least",
            next_step=f"raise it ({_CREATE} sets 7 days)",
        )
    yield from _policy(sorted(registry.live_topics(today)), rules.policy)


def check_dead_letters(settings: Settings) -> Iterator[Diagnosis]:
    """Check the dead-letter queue and its retention, which must leave time to examine letters."""
    name = settings.sqs_dlq_queue
    if name == settings.sqs_primary_queue:
        yield fault(
            "the queue is its own dead-letter queue",
            observed=f"KFM_SQS_DLQ_QUEUE {name}",
            expected="another queue than KFM_SQS_PRIMARY_QUEUE",
            next_step="correct KFM_SQS_DLQ_QUEUE",
        )
        return
    queue = connect(settings, name=name)
    retention = _rules(queue).retention
    yield ok(f"dead-letter queue {name} answers")
    source = timedelta(0)
    with suppress(QueueUnavailableError):  # the check of the primary queue reports this
        source = _rules(connect(settings)).retention
    if retention <= source and retention < timedelta(seconds=DLQ_RETENTION):
        yield warning(
            "dead letters are deleted as early as other messages, because their age counts from the first sending",
            observed=f"MessageRetentionPeriod {retention}",
            expected="longer than the retention of the primary queue, 14 days at best",
            next_step=f"raise it ({_CREATE})",
        )
    if waiting := queue.depth().visible:
        yield warning(
            "there are dead letters",
            observed=f"{counted(waiting, 'message')} on {name}",
            expected="none",
            next_step="kfm dlq list, then kfm dlq drain (docs/runbooks/dlq-drain.md)",
        )


def _rules(queue: Queue) -> QueueRules:
    """Return a queue's rules. Raises QueueUnavailableError."""
    try:
        return queue.rules()
    except QueueUnavailableError as error:
        if "AccessDenied" not in str(error.observed):
            raise
        raise QueueUnavailableError(
            f"these credentials may not look at queue {queue.name}",
            observed=error.observed,
            expected="sqs:GetQueueUrl and sqs:GetQueueAttributes, and the rights to receive messages",
            next_step="give the role this policy: kfm queue create --dataset NAME --print iam",
        ) from None


def _visibility(settings: Settings, rules: QueueRules) -> Diagnosis:
    seconds, least = int(rules.visibility_timeout.total_seconds()), settings.lease_seconds - LEASE_MARGIN_SECONDS
    if seconds >= least:
        return ok(f"messages stay hidden for {seconds} s, and a lease lasts {settings.lease_seconds} s")
    return fault(
        "messages are received again while a run still holds their units, and so become dead letters",
        observed=f"VisibilityTimeout {seconds} s",
        expected=f"{least} s at least: KFM_LEASE_SECONDS ({settings.lease_seconds}) less a minute",
        next_step=f"raise the queue's timeout ({_CREATE}), or lower KFM_LEASE_SECONDS",
    )


def _redrive(settings: Settings, registry: ContractRegistry, rules: QueueRules) -> Iterator[Diagnosis]:
    if (target := rules.dead_letter_arn) is None:
        yield fault(
            "the queue has no dead-letter queue, so an unusable message is received again until it expires",
            observed="no RedrivePolicy",
            expected=f"a redrive policy to {settings.sqs_dlq_queue}",
            next_step=_CREATE,
        )
        return
    if target.rpartition(":")[2] != settings.sqs_dlq_queue:
        yield fault(
            "dead letters are moved to a queue that this deployment does not read",
            observed=f"RedrivePolicy to {target}",
            expected=f"KFM_SQS_DLQ_QUEUE, {settings.sqs_dlq_queue}",
            next_step=f"correct KFM_SQS_DLQ_QUEUE, or the queue's redrive policy ({_CREATE})",
        )
    count = rules.max_receive_count or 0
    needed = max((contract.queue.max_receive_count for contract in registry), default=5)
    if count < needed:
        yield warning(
            "messages become dead letters sooner than their contracts allow",
            observed=f"maxReceiveCount {count}",
            expected=f"{needed} at least",
            next_step=f"raise it ({_CREATE}), or lower queue.max_receive_count of the contracts",
        )
    else:
        yield ok(f"a message becomes a dead letter after {count} receives")


def _policy(topics: Sequence[str], policy: Mapping[str, Any]) -> Iterator[Diagnosis]:
    statements = _allowing(policy)
    if any(_is_anybody(statement) for statement in statements):
        yield fault(
            "anybody may send messages to the queue",
            observed="a statement for everybody without a condition",
            expected="a condition on aws:SourceArn that names the topics",
            next_step=_CREATE,
        )
        return
    policies = json.dumps(statements)
    missing = [arn for arn in topics if arn not in policies]
    if not statements:
        yield fault(
            "no topic may send messages to the queue",
            observed="no Policy that allows sqs:SendMessage",
            expected="one for the topics of the datasets",
            next_step="kfm queue create --dataset NAME, for each dataset",
        )
    elif missing:
        listed_topics = ", ".join(missing[:SHOWN_TOPICS]) + (", ..." if len(missing) > SHOWN_TOPICS else "")
        yield warning(
            "some datasets' topics may not send messages to the queue",
            observed=f"{len(missing)} of {len(topics)} topics are not in the queue's policy: {listed_topics}",
            expected="the topics of every dataset that is to be ingested",
            next_step="kfm queue create --dataset NAME, for each dataset of these topics",
        )
    else:
        yield ok(f"the queue takes messages of {len(topics)} topics")


def _allowing(policy: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    value = policy.get("Statement", [])
    statements = value if isinstance(value, list) else [value]
    return [
        statement
        for statement in statements
        if statement.get("Effect") == "Allow" and _sends(statement.get("Action", []))
    ]


def _sends(action: Any) -> bool:
    actions = [action] if isinstance(action, str) else action
    return any(str(name).lower() in {"sqs:sendmessage", "sqs:*", "*"} for name in actions)


def _is_anybody(statement: Mapping[str, Any]) -> bool:
    return statement.get("Principal") in ("*", {"AWS": "*"}) and not statement.get("Condition")


def check_senders(
    settings: Settings,
    registry: ContractRegistry,
    *,
    answers: Callable[[str], bool] | None = None,
    now: datetime | None = None,
) -> Iterator[Diagnosis]:
    """Check that a valid certificate is stored, or else that the hosts answer. Raises KfmError."""
    if not settings.verifies_signatures:
        yield from _unverified(settings)
        return
    Signatures(settings)  # refuses KFM_SNS_TRUSTED_URL without KFM_SNS_TRUSTED_CA or vice versa, and a CA file without
    # a certificate
    valid = _valid(settings.home.absolute() / "certificates", now or datetime.now(UTC))
    if valid:
        yield ok(f"{counted(valid, 'certificate')} of senders, stored here and valid")
        return
    silent = [url for url in _hosts(settings, registry) if not (answers or _answers)(url)]
    if silent:
        yield fault(
            "senders' certificates cannot be fetched, so every message waits for its certificate",
            observed=f"no answer of {', '.join(silent)}, no valid certificate in {settings.home / 'certificates'}",
            expected="an answer, or a certificate that was fetched before",
            next_step="let this machine reach these hosts by HTTPS, or set HTTPS_PROXY",
        )
    else:
        yield ok("hosts of senders' certificates answer")


def _unverified(settings: Settings) -> Iterator[Diagnosis]:
    facts = {
        "observed": "KFM_SNS_VERIFY off, or an AWS_ENDPOINT_URL outside AWS",
        "expected": "KFM_SNS_VERIFY=require",
        "next_step": "set KFM_SNS_VERIFY=require, unless the queue is a demo's or gets raw delivery",
    }
    what = "messages are not verified, so messages of any sender are accepted"
    yield fault(what, **facts) if settings.env is Environment.PROD else warning(what, **facts)


def _valid(folder: Path, now: datetime) -> int:
    count = 0
    for file in sorted(folder.glob("*.pem")) if folder.is_dir() else ():
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
        except (OSError, ValueError):
            continue  # the verifier skips such a file, too
        count += certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
    return count


def _hosts(settings: Settings, registry: ContractRegistry) -> list[str]:
    """Return the hosts of certificates: SNS in the topics' regions, or the embedded cloud."""
    if settings.sns_trusted_url:
        return [settings.sns_trusted_url]
    return [f"https://sns.{region}.amazonaws.com/" for region in sorted({arn.split(":")[3] for arn in registry.topics})]


def _answers(url: str) -> bool:
    return ask_date(url, clock=lambda: datetime.now(UTC)) is not None


_SET = "let a time service keep the clock (chrony, systemd-timesyncd), then: kfm clock --ask"


def check_clock(
    rule: ClockRule,
    endpoint: Callable[[], str | None],
    clock: Callable[[], datetime],
    *,
    recorded: Callable[[], Sequence[ClockReading]] = tuple,
) -> Iterator[Diagnosis]:
    """Measure the clock and decide by all readings, as stages do."""
    readings = measure(rule, clock=clock, endpoint=endpoint())
    decision = decide([*recorded(), *readings], rule, ts_start=clock())
    limit = f"within {rule.max_offset.total_seconds():g} s of true time"
    if decision.state is ClockState.LOCKED:
        yield ok(f"the clock is right: {decision.reason}")
    elif decision.deciding is not None:
        yield fault(
            "the clock is wrong, so stages do not write", observed=decision.reason, expected=limit, next_step=_SET
        )
    else:
        yield warning(
            "the clock is not verified, so stages do not write",
            observed=decision.reason,
            expected=limit,
            next_step=_SET,
        )


def recorded_readings(settings: Settings, since: datetime) -> Sequence[ClockReading]:
    """Return the recorded readings; without a ledger, which another check reports, no readings."""
    with suppress(KfmError, SQLAlchemyError), ExitStack() as stack:
        database = Database.open(settings.database_url, read_only=True)
        stack.callback(database.dispose)
        return ClockLog(database).recent(since=since)
    return ()
