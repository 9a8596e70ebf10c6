"""Every command of each runbook and of the guide to alerts exits as documented after `kfm demo`."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.card import Card
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.alerts.recorded import Clock, Mailbox, Record, evaluator_of
from kfm_dagster_tests.docs.console import commands, script, shell, transcript
from kfm_dagster_tests.timeouts import HANG_SECONDS

RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
ALERTS = RUNBOOKS.parent / "alerts.md"
EXPECTED = {"dlq-drain", "incident-replay", "delayed-queue", "validation-errors", "kill-switch"}


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the home of `kfm demo`: units of each status, a duplicate, a rejected message."""
    folder = tmp_path_factory.mktemp("runbooks")
    done = shell("kfm demo --json", folder, seconds=HANG_SECONDS)
    assert done.returncode == 0, done.stdout
    return folder / ".kfm"


def fire_alerts(home: Path) -> None:
    """Record two failed gates and a stopped stage, and evaluate the alerts as the sensor does."""
    database = Database.open(f"sqlite:///{home / 'kfm.db'}")
    record = Record(database, at=datetime.now(UTC))
    record.gate("G3")
    record.gate("G7")
    record.line(AuditKind.STOP, "E_SYNC")
    evaluator_of(database, Card.load().alerts, Clock(datetime.now(UTC)), Mailbox()).evaluate()
    database.dispose()


@pytest.mark.deployment
@pytest.mark.timeout(2 * HANG_SECONDS + 60)
@pytest.mark.parametrize("path", [*sorted(RUNBOOKS.glob("*.md")), ALERTS], ids=lambda path: path.stem)
def test_every_command_of_the_runbook_exits_as_documented(
    path: Path, demo_home: Path, forks: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(demo_home, tmp_path / ".kfm")
    if path == ALERTS:
        fire_alerts(tmp_path / ".kfm")
    listed = list(commands(path.read_text(encoding="utf-8")))
    assert listed, "the runbook has no command"
    done = shell(script(listed), tmp_path, seconds=HANG_SECONDS, variables=forks)
    assert done.returncode == 0, transcript(listed, done.stdout)


def test_every_expected_runbook_exists() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} >= EXPECTED


@pytest.mark.clause("PCS-18")
def test_every_rule_has_a_section_with_commands() -> None:
    text = ALERTS.read_text(encoding="utf-8")
    sections = re.findall(r"^## (\w+_?\w*)$", text, re.MULTILINE)
    assert sections[-len(AlertRule) :] == [rule.value for rule in AlertRule]
    for rule in AlertRule:
        section = text.split(f"## {rule.value}\n")[1].split("\n## ")[0]
        assert list(commands(section)), f"{rule.value} has no command"
    for linked in re.findall(r"\]\(([\w/.-]+\.md)\)", text):
        assert (ALERTS.parent / linked).is_file()
