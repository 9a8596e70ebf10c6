"""`kfm doctor` reports each planted fault with a next step, and changes nothing.

Each row plants one fault in a deployment without other findings, so each finding is the planted one.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import yaml
from sqlalchemy.engine import make_url

from kfm_dagster.configs import own_folder
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.deployment.doctor import instance
from kfm_dagster.deployment.doctor.finding import Health, examine, ok
from kfm_dagster.deployment.doctor.queues import check_senders
from kfm_dagster.deployment.local import dagster_yaml_for
from kfm_dagster.errors import ExitCode
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.roles import grant_retention_role
from kfm_dagster.telemetry.clock import sources
from kfm_dagster.telemetry.clock.reading import ClockLog
from kfm_dagster.telemetry.clock.sources import NtpState
from kfm_dagster_tests.clocks import server_reading
from kfm_dagster_tests.commands import Call, state_of
from kfm_dagster_tests.databases import as_role, execute, migrated_sqlite
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, open_web_server
from kfm_dagster_tests.followers.test_discovery import installed
from kfm_dagster_tests.notifications.signing import AT, issue

pytestmark = pytest.mark.clause("BEY-11")

Planted = Callable[["Deployed"], object]
GONE = "http://127.0.0.1:1"
POLICY = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A sound deployment, and the means to plant a fault in it."""

    home: Path
    cloud: EmbeddedCloud
    registry: ContractRegistry
    patch: pytest.MonkeyPatch
    end: ExitStack

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self.patch.setenv(name, value)

    def queue(self, name: str = "other", *, primary: bool = True, **attributes: str) -> None:
        """Replace the queue by one with the same attributes except `attributes` ("" removes one)."""
        sqs = self.cloud.client("sqs")
        url = sqs.get_queue_url(QueueName=self.cloud.primary_queue)["QueueUrl"]
        sound = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        copied = ("VisibilityTimeout", "MessageRetentionPeriod", "RedrivePolicy", "Policy") if primary else ()
        values = {key: sound[key] for key in copied} | attributes
        queue_url = sqs.create_queue(QueueName=name)["QueueUrl"]
        if filled := {key: value for key, value in values.items() if value}:
            sqs.set_queue_attributes(QueueUrl=queue_url, Attributes=filled)
        self.set(**{"KFM_SQS_PRIMARY_QUEUE" if primary else "KFM_SQS_DLQ_QUEUE": name})

    def dagster(self, **changed: Any) -> None:
        """Change parts of dagster.yaml; None removes a part."""
        config = yaml.safe_load(dagster_yaml_for({}, Path()))
        config.update(changed)
        text = yaml.safe_dump({key: value for key, value in config.items() if value is not None})
        (self.home / "dagster" / "dagster.yaml").write_text(text)

    def beat(self, daemon: str, kind: str, *, ago: timedelta = timedelta()) -> None:
        file = self.home / "dagster" / "history" / "runs.db"
        file.parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS daemon_heartbeats (daemon_type text UNIQUE, daemon_id text, timestamp text)"
            )
            at = (datetime.now(UTC) - ago).strftime("%Y-%m-%d %H:%M:%S.%f")
            connection.execute("INSERT OR REPLACE INTO daemon_heartbeats VALUES (?, ?, ?)", (kind, daemon, at))

    def configs(self, **files: str) -> None:
        """Replace files of the configuration."""
        folder = self.home.parent / "configs"
        shutil.copytree(own_folder(), folder)
        for name, text in files.items():
            (folder / f"{name}.yaml").write_text(f'version: "1.0.0"\n{text}\n')
        self.set(KFM_CONFIGS_DIR=str(folder))

    def backup(self, *, ago: timedelta) -> None:
        """Add a backup of this age to the folder of backups."""
        file = self.home.parent / "backups" / f"{ago.total_seconds():.0f}" / "kfm.dump"
        file.parent.mkdir(parents=True)
        file.touch()
        at = (datetime.now(UTC) - ago).timestamp()
        os.utime(file, (at, at))
        self.set(KFM_BACKUP_URL=str(file.parents[1]))

    def celery(self, worker: Mapping[str, object], *, maxmemory: int = 0, policy: str = "noeviction") -> None:
        """Set a reachable broker and a worker with this configuration, or no worker."""
        self.set(KFM_CELERY_BROKER="redis://127.0.0.1:1/0")
        self.patch.setattr(redis.Redis, "info", lambda *_: {"maxmemory": maxmemory, "maxmemory_policy": policy})
        workers = {"celery@one": worker} if worker else {}
        self.patch.setattr(instance, "workers", lambda _: workers)

    def objects(self) -> Path:
        """Use a folder instead of the providers' buckets."""
        for bucket in self.registry.buckets:
            (self.home.parent / "objects" / bucket).mkdir(parents=True, exist_ok=True)
        self.set(KFM_OBJECT_ROOT=str(self.home.parent / "objects"))
        return self.home.parent / "objects"


@pytest.fixture(scope="module")
def cloud(cloud: EmbeddedCloud, contracts: ContractRegistry) -> EmbeddedCloud:
    """A cloud with the queues of all datasets, with retention times of a deployment, and the bucket `ours`."""
    cloud.provision(contracts)
    cloud.client("s3").create_bucket(Bucket="ours")
    sqs = cloud.client("sqs")
    for name, seconds in ((cloud.primary_queue, 7 * 86_400), (cloud.dlq, 14 * 86_400)):
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        # moto removes the policy if the request does not repeat it.
        policy = {"Policy": attributes["Policy"]} if "Policy" in attributes else {}
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": str(seconds), **policy})
    return cloud


@pytest.fixture
def deployed(
    cloud: EmbeddedCloud, home: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployed]:
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    (home / "dagster").mkdir(parents=True)
    migrated_sqlite(home / "kfm.db")
    monkeypatch.setenv("KFM_CATALOG_URL", "s3://ours/catalog")
    with ExitStack() as end:
        deployed_ = Deployed(home=home, cloud=cloud, registry=contracts, patch=monkeypatch, end=end)
        deployed_.dagster()
        deployed_.beat("one", "SENSOR")
        deployed_.objects()
        yield deployed_


def record_clock(offset: float) -> None:
    """Record a clock reading of an hour ago, as a run does."""
    database = Database.open(Settings.load().database_url)
    ClockLog(database).record([server_reading(datetime.now(UTC) - timedelta(hours=1), offset, 0.55)])
    database.dispose()


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """The URL of a server that denies every request as SQS and S3 do."""
    refusal = {"__type": "com.amazon.coral.service#AccessDeniedException", "message": "no"}

    def answer(_: WebRequest) -> WebAnswer:
        headers = {"Content-Type": "application/x-amz-json-1.0", "Date": formatdate(usegmt=True)}
        return WebAnswer(status=403, headers=headers, body=json.dumps(refusal).encode())

    with open_web_server() as server:
        server.answers = answer
        yield server.url("")


def findings(call: Call) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and all findings that are not ok."""
    answer = call("doctor", "--json")
    printed = json.loads(answer.out)
    assert (answer.code == ExitCode.FINISHED_WITH_FAILURES) == (printed["faults"] > 0), answer.err
    assert answer.code in {ExitCode.DONE, ExitCode.FINISHED_WITH_FAILURES}
    return answer.code, [finding for finding in printed["findings"] if finding["verdict"] != Health.OK]


@pytest.mark.clause("BEY-18")
def test_a_sound_deployment_has_no_finding_and_is_not_changed(deployed: Deployed, call: Call) -> None:
    def outside() -> object:
        sqs = deployed.cloud.client("sqs")
        urls = sorted(sqs.list_queues()["QueueUrls"])
        rules = [sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"] for url in urls]
        stored = deployed.cloud.client("s3").list_objects_v2(Bucket="ours")
        return urls, rules, stored["KeyCount"]

    before = state_of(deployed.home), outside()
    assert findings(call) == (ExitCode.DONE, [])
    # Without KFM_OBJECT_ROOT, the command asks each of the providers' buckets.
    deployed.patch.delenv("KFM_OBJECT_ROOT")
    assert findings(call) == (ExitCode.DONE, [])
    assert (state_of(deployed.home), outside()) == before
    shown = call("doctor").out
    assert shown.endswith(" ok\n")
    assert "0 faults, 0 warnings" in shown
    assert "surface-obs: Retired since 2025-08-29: " in shown
    for check in ("queue", "dead letters", "database", "clock", "senders", "instance", "daemons", "catalog", "room"):
        assert f"ok      {check} " in shown, check


def _policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Statement": statements})


def _topics(deployed: Deployed, *arns: str, **more: str) -> dict[str, Any]:
    return {**POLICY, "Condition": {"ArnEquals": {"aws:SourceArn": list(arns)}}, **more}


def _two_processes(deployed: Deployed) -> None:
    program = deployed.home.parent / "dagster-daemon"
    program.write_text("import sys; sys.stdin.read()\n")
    environment = {**os.environ, "DAGSTER_HOME": str(deployed.home / "dagster")}
    for _ in range(2):
        child = subprocess.Popen([sys.executable, program, "run"], env=environment, stdin=subprocess.PIPE)
        deployed.end.enter_context(child)


def _newer_schema(deployed: Deployed) -> None:
    with closing(sqlite3.connect(deployed.home / "kfm.db")) as connection, connection:
        connection.execute("DROP TRIGGER IF EXISTS schema_version_is_not_changed")
        connection.execute(
            "UPDATE schema_version SET number = 999 WHERE number = (SELECT max(number) FROM schema_version)"
        )


def _letter(deployed: Deployed) -> None:
    _letters(deployed, letters=14 * 86_400, messages=604_800)
    sqs = deployed.cloud.client("sqs")
    sqs.send_message(QueueUrl=sqs.get_queue_url(QueueName="letters-1209600-604800")["QueueUrl"], MessageBody="x")


def _redrive(deployed: Deployed, *, count: int = 5, dlq: str | None = None) -> str:
    target = f"arn:aws:sqs:us-east-1:123456789012:{dlq or deployed.cloud.dlq}"
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": count})


def _full(deployed: Deployed, free: int) -> None:
    deployed.patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=free))


def _late(deployed: Deployed) -> None:
    deployed.patch.setattr("kfm_dagster.ingest.pipeline.utc_now", lambda: datetime.now(UTC) - timedelta(hours=1))


def _letters(deployed: Deployed, *, letters: int, messages: int, **more: str) -> None:
    """Create queues with these retention times in seconds."""
    name = f"{letters}-{messages}"
    deployed.queue(f"letters-{name}", primary=False, MessageRetentionPeriod=str(letters))
    more = {"MessageRetentionPeriod": str(messages), "RedrivePolicy": _redrive(deployed, dlq=f"letters-{name}"), **more}
    deployed.queue(f"before-{name}", **more)


def _patient(deployed: Deployed) -> None:
    """Allow six receives of a dataset's messages."""
    text = (resources.files("kfm_dagster.contracts") / "datasets" / "nexrad-l2.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    document["metadata"]["id"] = document["stac"]["collection"] = "radar"
    document["notifications"] = {"priority": "normal"}
    document["storage"] |= {"buckets": ["radar"], "scheduled_listing": {"every_seconds": 86_400}}
    document["queue"] = {"visibility_timeout": 900, "max_receive_count": 6}
    folder = deployed.home.parent / "contracts"
    folder.mkdir()
    (folder / "radar.yaml").write_text(yaml.safe_dump(document))
    (deployed.objects() / "radar").mkdir()
    deployed.set(KFM_CONTRACTS_DIR=str(folder))


def _lost_letters(deployed: Deployed) -> None:
    deployed.queue("lost", primary=False)
    deployed.queue("before-lost", RedrivePolicy=_redrive(deployed, dlq="lost"))
    sqs = deployed.cloud.client("sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="lost")["QueueUrl"])


def _announce(deployed: Deployed, target: str) -> None:
    deployed.configs(announcements=f"subscriptions: [{{name: kansas, target: {{{target}}}}}]")


AS_MEANT = {"task_acks_late": True, "task_reject_on_worker_lost": True}
LIVE = {"key": "kfm/lane", "value": "live", "limit": 1}
FAULT, WARNING = Health.FAULT, Health.WARNING
ROWS: dict[str, tuple[Planted, str, Health, str, str]] = {
    # fault: how it is planted, check, verdict, observed text, next step
    "no queue": (lambda d: d.set(KFM_SQS_PRIMARY_QUEUE="gone"), "queue", FAULT, "gone", "create the queue"),
    "no dead-letter queue": (_lost_letters, "dead letters", FAULT, "lost", "create"),
    "a queue without redrive": (
        lambda d: d.queue("bare", RedrivePolicy=""), "queue", FAULT, "no RedrivePolicy", "kfm queue create"
    ),
    "redrive to another queue": (
        lambda d: d.queue("astray", RedrivePolicy=_redrive(d, dlq="astray")), "queue", FAULT, ":astray",
        "KFM_SQS_DLQ_QUEUE",
    ),
    "visibility below the lease": (
        lambda d: d.queue("hasty", VisibilityTimeout="899"), "queue", FAULT, "899 s", "KFM_LEASE_SECONDS"
    ),
    "a longer lease": (lambda d: d.set(KFM_LEASE_SECONDS="961"), "queue", FAULT, "900 s", "KFM_LEASE_SECONDS"),
    "too few receives before the dead-letter queue": (
        lambda d: d.queue("strict", RedrivePolicy=_redrive(d, count=4)), "queue", WARNING, "maxReceiveCount 4", "raise"
    ),
    "short retention": (
        lambda d: d.queue("brief", MessageRetentionPeriod="345599"), "queue", WARNING, "3 days, 23:59:59", "raise"
    ),
    "dead letters deleted as early as messages": (
        lambda d: _letters(d, letters=604_800, messages=604_800), "dead letters", WARNING, "7 days", "raise"
    ),
    "a contract with more receives": (_patient, "queue", WARNING, "maxReceiveCount 5", "queue.max_receive_count"),
    "no policy": (lambda d: d.queue("deaf", Policy=""), "queue", FAULT, "no Policy", "kfm queue create"),
    "a policy that lacks a topic": (
        lambda d: d.queue("choosy", Policy=_policy(_topics(d, *list(d.registry.topics)[1:]))), "queue", WARNING,
        "1 of ", "kfm queue create",
    ),
    "a policy for everyone": (
        lambda d: d.queue("open", Policy=_policy({**POLICY, "Principal": "*"})), "queue", FAULT,
        "without a condition", "kfm queue create",
    ),
    "a policy for every AWS account": (
        lambda d: d.queue("wide", Policy=_policy({**POLICY, "Principal": {"AWS": "*"}, "Action": "*"})), "queue", FAULT,
        "without a condition", "kfm queue create",
    ),
    "its own dead-letter queue": (
        lambda d: d.queue("ring", RedrivePolicy=_redrive(d, dlq="ring")) or d.set(KFM_SQS_DLQ_QUEUE="ring"),
        "dead letters", FAULT, "ring", "correct KFM_SQS_DLQ_QUEUE",
    ),
    "dead letters": (_letter, "dead letters", WARNING, "1 message on letters", "kfm dlq"),
    "dead letters deleted earlier than messages": (
        lambda d: _letters(d, letters=86_400, messages=604_800), "dead letters", WARNING, "1 day", "raise",
    ),
    "a wrong clock": (_late, "clock", FAULT, "gives an offset of 3", "kfm clock --ask"),
    "no ledger": (lambda d: (d.home / "kfm.db").unlink(), "database", FAULT, "kfm.db", "kfm init"),
    "a newer schema": (_newer_schema, "database", FAULT, "schema 999", "newer release"),
    "a damaged database": (lambda d: (d.home / "kfm.db").write_text("x" * 200), "database", FAULT, "kfm.db", "backup"),
    "an unreachable database": (
        lambda d: d.set(KFM_WAL_DSN="postgresql://kfm@127.0.0.1:1/kfm"), "database", FAULT, "127.0.0.1", "start"
    ),
    "a catalog without its bucket": (
        lambda d: d.set(KFM_CATALOG_URL="s3://gone/x"), "catalog", FAULT, "no such bucket", "KFM_CATALOG_URL"
    ),
    "a catalog folder that cannot be written": (
        lambda d: d.set(KFM_CATALOG_URL="/proc/kfm"), "catalog", FAULT, "", "KFM_CATALOG_URL"
    ),
    "a lineage without its bucket": (
        lambda d: d.set(KFM_LINEAGE_URL="s3://gone"), "lineage", FAULT, "no such bucket", "KFM_LINEAGE_URL"
    ),
    "a missing bucket of objects": (
        lambda d: (d.objects() / "noaa-goes19").rmdir(), "objects noaa-goes19", WARNING, "noaa-goes19",
        "KFM_OBJECT_ROOT",
    ),
    "unverified senders": (
        lambda d: d.set(KFM_SNS_VERIFY="off"), "senders", WARNING, "KFM_SNS_VERIFY off", "raw delivery"
    ),
    "unreachable certificates of senders": (
        lambda d: d.set(KFM_SNS_TRUSTED_URL=GONE), "senders", FAULT, GONE, "HTTPS_PROXY"
    ),
    "no dagster.yaml": (lambda d: (d.home / "dagster" / "dagster.yaml").unlink(), "instance", FAULT, "no ", "kfm init"),
    "a broken dagster.yaml": (
        lambda d: (d.home / "dagster" / "dagster.yaml").write_text("{"), "instance", FAULT, "ParserError", "correct the"
    ),
    "no run monitoring": (
        lambda d: d.dagster(run_monitoring={"enabled": False}), "instance", FAULT, "not enabled", "dagster.yaml"
    ),
    "pool slots that stay taken": (
        lambda d: d.dagster(run_monitoring={"enabled": True}), "instance", WARNING, "free_slots", "dagster.yaml"
    ),
    "run retries": (
        lambda d: d.dagster(run_retries={"enabled": True, "max_retries": 3}), "instance", WARNING, "run_retries",
        "dagster.yaml",
    ),
    "runs that are not queued": (
        lambda d: d.dagster(run_coordinator=None, concurrency=None), "instance", FAULT, "no run_coordinator",
        "dagster.yaml",
    ),
    "runs of another coordinator": (
        lambda d: d.dagster(run_coordinator={"class": "DefaultRunCoordinator"}, concurrency=None), "instance", FAULT,
        "DefaultRunCoordinator", "dagster.yaml",
    ),
    "runs without a maximum number": (
        lambda d: d.dagster(concurrency=None), "instance", WARNING, "no max_concurrent_runs", "dagster.yaml"
    ),
    "a limit of the other lane": (
        lambda d: d.dagster(concurrency={"runs": {"max_concurrent_runs": 3, "tag_concurrency_limits": [LIVE]}}),
        "instance", WARNING, "all of 3 runs", "limit",
    ),
    "a live share that the limits do not keep": (
        lambda d: d.set(KFM_LIVE_SHARE="1"), "instance", WARNING, "1 of 3 runs", "limit"
    ),
    "no daemon": (
        lambda d: d.beat("one", "SENSOR", ago=timedelta(minutes=6)), "daemons", WARNING, "last heartbeat", "a daemon"
    ),
    "two daemons": (lambda d: d.beat("another", "SCHEDULER"), "daemons", FAULT, "2 ids", "end all daemons but one"),
    "two daemons on this machine": (_two_processes, "daemons", FAULT, "processes ", "end all daemons but one"),
    "no backup": (
        lambda d: d.set(KFM_BACKUP_URL=str(d.home.parent / "none")), "backups", FAULT, "no file in", "docs/backup.md"
    ),
    "an old backup": (
        lambda d: d.backup(ago=timedelta(hours=37)), "backups", WARNING, "37 hours ago", "docs/backup.md"
    ),
    "backups without their bucket": (
        lambda d: d.set(KFM_BACKUP_URL="s3://gone/dumps"), "backups", FAULT, "no such bucket", "KFM_BACKUP_URL"
    ),
    "an unreachable database of the STAC API": (
        lambda d: d.set(KFM_STAC_API_DSN="postgresql://stac:s3cret@127.0.0.1:1/stac"), "STAC API", FAULT,
        "stac:***@127.0.0.1", "KFM_STAC_API_DSN",
    ),
    "a follower that cannot be loaded": (
        lambda d: installed(d.home.parent, d.patch, "absent"), "follower absent", FAULT, "No module named 'absent'",
        "install what the follower needs",
    ),
    "an unreachable broker": (
        lambda d: d.set(KFM_CELERY_BROKER="redis://:s3cret@127.0.0.1:1/0"), "Celery", FAULT, ":***@127.0.0.1:1/0",
        "KFM_CELERY_BROKER",
    ),
    "a broker that evicts keys": (
        lambda d: d.celery(AS_MEANT, maxmemory=1 << 30, policy="allkeys-lru"), "Celery", FAULT, "allkeys-lru",
        "redis.conf",
    ),
    "a worker that acknowledges early": (
        lambda d: d.celery({"task_acks_late": True}), "Celery", FAULT, "celery@one without",
        "kfm_dagster.defs.celery_worker",
    ),
    "a worker that does not return lost tasks": (
        lambda d: d.celery({"task_reject_on_worker_lost": True}), "Celery", FAULT, "celery@one without",
        "kfm_dagster.defs.celery_worker",
    ),
    "no worker": (lambda d: d.celery({}), "Celery", WARNING, "no answer within", "kfm_dagster.defs.celery_worker"),
    "a missing queue of events": (
        lambda d: _announce(d, f"sqs: {d.cloud.endpoint_url}/123456789012/gone"), "announcements", FAULT,
        "NonExistentQueue", "announcements.yaml",
    ),
    "a missing topic of events": (
        lambda d: _announce(d, "sns: 'arn:aws:sns:us-east-1:123456789012:gone'"), "announcements", FAULT, "NotFound",
        "announcements.yaml",
    ),
    "an unreachable webhook": (
        lambda d: _announce(d, f"webhook: '{GONE}/items?code=s3cret'"), "announcements", FAULT, "code=***",
        "announcements.yaml",
    ),
    "a full disk": (lambda d: _full(d, (1 << 30) - 1), "room", FAULT, "1.0 GiB free", "free some"),
    "the minimum of free space": (lambda d: _full(d, 1 << 30), "room", WARNING, "1.0 GiB free", "free some"),
    "little free space": (lambda d: _full(d, (5 << 30) - 1), "room", WARNING, "5.0 GiB free", "free some"),
}  # fmt: skip


@pytest.mark.parametrize("planted", ROWS)
def test_a_planted_fault_is_the_only_finding_and_has_a_next_step(planted: str, deployed: Deployed, call: Call) -> None:
    plant, check, verdict, observed, next_step = ROWS[planted]
    record_clock(0.2)  # a fixed reading, since the machine's load affects real ones
    plant(deployed)
    before = state_of(deployed.home)
    _, reported = findings(call)
    assert [(finding["check"], finding["verdict"]) for finding in reported] == [(check, verdict)], reported
    [single] = reported
    assert observed in single["observed"]
    assert next_step in single["next_step"]
    assert single["expected"]
    assert state_of(deployed.home) == before


@pytest.mark.clause("BEY-18")
def test_values_at_the_limits_have_no_finding(deployed: Deployed, call: Call) -> None:
    """Each value is exactly at its limit, or one step inside where equality is impossible."""
    # Retired topics need not be in the policy.
    topics, day = sorted(deployed.registry.live_topics(datetime.now(UTC).date())), 86_400
    retired = {arn.rpartition(":")[2] for arn in deployed.registry.topics.keys() - set(topics)}
    assert retired >= {"NewGOES16Object", "NewGOES17Object"}
    denied = {**POLICY, "Effect": "Deny", "Principal": "*"}
    spelt = _policy(denied, _topics(deployed, *topics, Action="SQS:SendMessage"))
    _letters(deployed, letters=4 * day + 1, messages=4 * day, Policy=spelt)
    deployed.dagster(run_retries={"enabled": True, "max_retries": 3, "retry_on_asset_or_op_failure": False})
    deployed.beat("earlier", "SCHEDULER", ago=timedelta(seconds=90))
    for hours in (40, 35):
        deployed.backup(ago=timedelta(hours=hours))
    deployed.celery(AS_MEANT, policy="allkeys-lru")
    _full(deployed, 5 << 30)
    assert findings(call) == (ExitCode.DONE, [])
    # SQS keeps messages for at most 14 days.
    every = json.dumps({"Statement": _topics(deployed, *topics, Action="sqs:*")})
    _letters(deployed, letters=14 * day, messages=14 * day, Policy=every)
    deployed.dagster(run_retries={"enabled": True, "max_retries": 0})
    for kind in ("SENSOR", "SCHEDULER"):
        deployed.beat("one", kind, ago=timedelta(minutes=4))
    assert findings(call) == (ExitCode.DONE, [])


def test_a_stored_certificate_is_valid_from_its_first_to_its_last_second(
    home: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_SNS_VERIFY", "require")
    start, end, second = AT, AT + timedelta(days=1), timedelta(seconds=1)
    (home / "certificates").mkdir(parents=True)
    (home / "certificates" / "sns.pem").write_bytes(issue("sns", start=start, end=end).pem)

    def verdict(now: datetime) -> Health:
        [finding] = check_senders(Settings.load(), contracts, answers=lambda _: False, now=now)
        return finding.verdict

    moments = (start - second, start, end, end + second)
    assert [verdict(now) for now in moments] == [FAULT, Health.OK, Health.OK, FAULT]


def test_denied_access_to_queue_and_store_is_distinguished_from_unreachable_services(
    deployed: Deployed, refusing: str, call: Call
) -> None:
    deployed.set(AWS_ENDPOINT_URL_SQS=refusing, AWS_ENDPOINT_URL_S3=refusing)
    _, reported = findings(call)
    by_check = {finding["check"]: finding for finding in reported}
    assert by_check.keys() == {"queue", "dead letters", "catalog"}
    assert "AccessDenied" in by_check["queue"]["observed"]
    assert "--print iam" in by_check["queue"]["next_step"]
    assert by_check["catalog"]["observed"] == "the store refuses access"
    deployed.set(AWS_ENDPOINT_URL_SQS=GONE, AWS_ENDPOINT_URL_S3=GONE)
    _, reported = findings(call)
    # Without an answer, the result depends on the kernel's clock state, which differs between machines.
    by_check = {finding["check"]: finding for finding in reported if finding["check"] != "clock"}
    assert by_check.keys() == {"queue", "dead letters", "catalog"}
    assert "does not answer" in by_check["queue"]["what"]
    assert "does not answer" in by_check["catalog"]["what"]


def test_findings_with_the_same_cause_are_one_line_of_text_and_separate_in_json(
    deployed: Deployed, refusing: str, call: Call
) -> None:
    record_clock(0.2)
    deployed.patch.delenv("KFM_OBJECT_ROOT")
    deployed.set(AWS_ENDPOINT_URL_S3=refusing, COLUMNS="80")
    _, reported = findings(call)
    buckets = [finding for finding in reported if finding["check"].startswith("objects ")]
    assert len(buckets) == len(deployed.registry.buckets)
    lines = call("doctor").out.splitlines()
    # A path is never shortened, so that it can be copied.
    assert all(len(line) <= 80 or "/" in line for line in lines)
    shown = " ".join(" ".join(lines).split())
    causes = [line for line in lines if line.startswith("fault")]
    assert [line.split()[1] for line in causes] == ["catalog", "objects"]
    examples = "; ".join(bucket["what"] for bucket in buckets[:2])
    assert f"fault objects {len(buckets)} faults: {examples}; and {len(buckets) - 2} more observed: " in shown
    assert f" {len(reported)} faults, 0 warnings, " in shown


@pytest.mark.clause("PCS-10")
def test_the_clock_is_judged_as_by_kfm_clock_and_an_unverified_clock_is_only_a_warning(
    deployed: Deployed, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    unkept = (5, NtpState(status=0x40, offset=0, maxerror=16_000_000))
    monkeypatch.setattr(sources.kernel_clock, "__kwdefaults__", {"ask": lambda: unkept})
    deployed.set(AWS_ENDPOINT_URL_SQS=GONE, AWS_ENDPOINT_URL_S3=GONE)
    for offset, verdict, state in ((None, WARNING, "unlocked"), (0.2, Health.OK, "locked"), (3.0, FAULT, "unlocked")):
        if offset is not None:
            record_clock(offset)
        [single] = [
            finding for finding in json.loads(call("doctor", "--json").out)["findings"] if finding["check"] == "clock"
        ]
        assert single["verdict"] == verdict, single
        assert json.loads(call("clock", "--json").out)["state"] == state


def test_prod_requires_more_settings(deployed: Deployed, call: Call) -> None:
    deployed.set(KFM_ENV="prod", KFM_SNS_VERIFY="off")
    code, reported = findings(call)
    assert code == ExitCode.FINISHED_WITH_FAILURES
    assert {(finding["check"], finding["verdict"]) for finding in reported} == {
        ("senders", FAULT), ("database", WARNING), ("instance", WARNING)
    }  # fmt: skip


def test_a_role_with_too_many_rights_is_a_finding(
    deployed: Deployed, postgres_url: str, deployment_url: str, retention_role: str, call: Call
) -> None:
    owner = Database.open(postgres_url)
    grant_retention_role(owner, retention_role)
    owner.dispose()
    retention_url = as_role(postgres_url, retention_role)
    deployed.configs(retention="keep: {landing: 30d}")
    deployed.set(KFM_ENV="stage")
    for ledger, retention, expected in (
        (postgres_url, retention_url, [("database", "kfm init --role")]),
        (deployment_url, "", []),
        (deployment_url, deployment_url, [("retention", "kfm init --retention-role")]),
        (deployment_url, retention_url, []),
    ):
        deployed.set(KFM_WAL_DSN=ledger, KFM_RETENTION_DSN=retention)
        reported = findings(call)[1]
        assert [(finding["check"], finding["verdict"]) for finding in reported] == [
            (check, WARNING) for check, _ in expected
        ]
        assert all(step in finding["next_step"] for finding, (_, step) in zip(reported, expected, strict=True))


def test_a_database_in_prod_needs_a_backup(deployed: Deployed, postgres_url: str, call: Call) -> None:
    def backup_findings() -> list[tuple[str, str]]:
        return [
            (finding["verdict"], finding["observed"]) for finding in findings(call)[1] if finding["check"] == "backups"
        ]

    deployed.set(KFM_WAL_DSN=postgres_url, KFM_ENV="prod")
    assert backup_findings() == [(WARNING, "archive_mode off, no standby, no KFM_BACKUP_URL")]
    deployed.backup(ago=timedelta(hours=35))
    assert backup_findings() == []
    # This view reports a failing archive; the search path puts it before the view of PostgreSQL.
    execute(
        postgres_url,
        "CREATE VIEW pg_stat_archiver AS SELECT '0001'::text AS last_failed_wal, now() AS last_failed_time, "
        "now() - interval '1 minute' AS last_archived_time",
    )
    sought = make_url(postgres_url).update_query_dict({"options": "-csearch_path=public,pg_catalog"})
    deployed.set(KFM_WAL_DSN=sought.render_as_string(hide_password=False))
    assert backup_findings() == [(FAULT, "0001 failed, later than the last success")]


def test_reachable_receivers_and_workers_are_ok_and_are_sent_nothing(
    deployed: Deployed, refusing: str, call: Call
) -> None:
    queue = deployed.cloud.client("sqs").create_queue(QueueName="items")["QueueUrl"]
    deployed.celery(AS_MEANT)
    deployed.configs(
        announcements=f"subscriptions: [{{name: queue, target: {{sqs: '{queue}'}}}}, "
        f"{{name: hook, target: {{webhook: '{refusing}/items'}}}}]"
    )
    assert findings(call) == (ExitCode.DONE, [])
    # A right to send does not imply a right to inspect.
    deployed.set(AWS_ENDPOINT_URL_SQS=refusing)
    assert "announcements" not in {finding["check"] for finding in findings(call)[1]}
    deployed.patch.delenv("AWS_ENDPOINT_URL_SQS")
    sqs = deployed.cloud.client("sqs")
    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["ApproximateNumberOfMessages"])["Attributes"]
    assert attributes == {"ApproximateNumberOfMessages": "0"}


def test_a_hanging_or_failing_check_is_a_fault_and_the_other_checks_still_run() -> None:
    never = threading.Event()

    def dies() -> Iterator[Any]:
        yield ok("begun")
        raise LookupError("by itself")

    reported = examine(
        {"stuck": lambda: [ok("ended")] if never.wait(600) else [], "dies": dies, "well": lambda: [ok("well")]},
        seconds=0.2,
    )
    assert [(finding.check, finding.verdict) for finding in reported] == [
        ("stuck", FAULT),
        ("dies", FAULT),
        ("well", Health.OK),
    ]
    assert "no answer within 0.2 s" in str(reported[0].observed)
    assert "LookupError: by itself" in str(reported[1].observed)
    never.set()
