"""The injector and its plan: occasions of rules, kinds of faults, refused plans."""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from botocore.exceptions import BotoCoreError
from obstore.exceptions import BaseError
from sqlalchemy.exc import OperationalError

import kfm_dagster
from fault_injection.counters import LOG
from fault_injection.failures import can_fail, failure
from fault_injection.injector import PLAN_VARIABLE, Injector, activate, injecting
from fault_injection.plan import Kill, Plan, load_plan, parse_plan
from kfm_dagster import failpoints
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.followers.announcements.sending import ReceiverUnavailableError
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.settings import Environment, Settings
from kfm_dagster_tests.schemas import json_schema

BEGIN = Failpoint.DATABASE_BEGIN


def plan_of(*rules: str, seed: int = 0) -> Plan:
    lines = "\n".join(f"  - {{{rule}}}" for rule in rules)
    return parse_plan(f"apiVersion: kfm.nodd.chaos/v1\nseed: {seed}\nrules:\n{lines}", source="plan")


def failing(injector: Injector, times: int) -> list[int]:
    """Reach the failpoint `times` times, and return the occasions at which the injector raises."""
    occasions = []
    for number in range(1, times + 1):
        try:
            injector(BEGIN, {})
        except OperationalError:
            occasions.append(number)
    return occasions


@pytest.mark.clause("BEY-09")
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("nth: 3", [3]),
        ("at_most: 2", [1, 2]),
        ("probability: 1.0, at_most: 1", [1]),
        ("probability: 1.0", list(range(1, 9))),
    ],
)
def test_a_rule_fires_at_its_occasions(when: str, expected: list[int], tmp_path: Path) -> None:
    injector = Injector(plan_of(f"name: a, fault: error, failpoint: database.begin, {when}"), tmp_path)
    assert failing(injector, 8) == expected
    assert injector.counters.counts("a") == (8, len(expected))
    assert [entry["occasion"] for entry in injector.counters.injected()] == expected


@pytest.mark.clause("BEY-09")
def test_a_plan_with_a_seed_injects_at_the_same_occasions_across_processes(tmp_path: Path) -> None:
    plan = plan_of("name: a, fault: error, failpoint: database.begin, probability: 0.3, at_most: 12", seed=11)
    once = failing(Injector(plan, tmp_path / "once"), 60)
    assert len(once) == 12
    spread: list[int] = []
    for part in range(6):  # each part has an injector of its own, as in several processes
        spread += [number + 10 * part for number in failing(Injector(plan, tmp_path / "spread"), 10)]
    assert spread == once
    for name, seed in (("a", 12), ("b", 11)):
        rule = f"name: {name}, fault: error, failpoint: database.begin, probability: 0.3, at_most: 12"
        assert failing(Injector(plan_of(rule, seed=seed), tmp_path / f"{name}{seed}"), 60) != once


def _reach_until_killed(state: str) -> None:
    where = "{operator: s*, dataset: h*}"
    injector = Injector(
        plan_of(f"name: a, fault: kill, failpoint: database.begin, where: {where}, nth: 3"), Path(state)
    )
    for _ in range(2):
        injector(BEGIN, {"operator": "settle", "dataset": "hrrr"})
        injector(BEGIN, {"operator": "message_parse", "dataset": "hrrr"})
        injector(BEGIN, {})
        injector(Failpoint.DATABASE_COMMIT_AFTER, {"operator": "settle"})


@pytest.mark.clause("BEY-09")
def test_a_kill_rule_kills_exactly_one_of_all_processes(tmp_path: Path) -> None:
    codes = []
    for _ in range(3):
        process = multiprocessing.get_context("spawn").Process(target=_reach_until_killed, args=(str(tmp_path),))
        process.start()
        process.join(60)
        codes.append(process.exitcode)
    assert codes == [0, -signal.SIGKILL, 0]
    injector = Injector(plan_of("name: a, fault: kill, failpoint: database.begin, nth: 3"), tmp_path)
    [killed] = injector.counters.injected()
    assert {name: killed[name] for name in ("rule", "fault", "occasion", "failpoint", "labels")} == {
        "rule": "a",
        "fault": "kill",
        "occasion": 3,
        "failpoint": "database.begin",
        "labels": {"operator": "settle", "dataset": "hrrr"},
    }
    assert (tmp_path / LOG).is_file()


def test_every_dependency_fails_as_its_callers_expect() -> None:
    kinds = {
        "database": OperationalError, "queue": BotoCoreError, "object": BaseError, "catalog": OSError,
        "lineage": OSError, "artifact": BaseError, "landing": BaseError, "announcement": ReceiverUnavailableError,
    }  # fmt: skip
    for failpoint in Failpoint:
        kind = kinds.get(failpoint.partition(".")[0])
        assert can_fail(failpoint) is (kind is not None)
        if kind is not None:
            error = failure(failpoint, rule="the-rule")
            assert isinstance(error, kind)
            assert "the-rule" in str(error)


def test_a_delay_blocks_the_thread_that_reaches_the_failpoint(tmp_path: Path) -> None:
    injector = Injector(plan_of("name: a, fault: delay, failpoint: database.begin, milliseconds: 40, nth: 2"), tmp_path)
    took = []
    for _ in range(2):
        began = time.monotonic()
        injector(BEGIN, {})
        took.append(time.monotonic() - began)
    assert took[1] >= 0.04


@pytest.mark.clause("BEY-09")
def test_a_skew_applies_to_a_limited_number_of_processes(tmp_path: Path) -> None:
    plan = plan_of(
        "name: late, fault: skew, seconds: -3600, at_most: 1", "name: fast, fault: skew, seconds: 60, at_most: 2"
    )
    offsets = []
    for _ in range(3):  # one after the other, as processes load a plan
        with injecting(plan, tmp_path):
            offsets.append(failpoints.clock_skew())
            before, skewed = utc_now() - failpoints.clock_skew(), utc_now()
            assert skewed - before >= failpoints.clock_skew()
    assert offsets == [timedelta(minutes=-59), timedelta(minutes=1), timedelta()]
    assert failpoints.clock_skew() == timedelta()


@pytest.fixture
def recorded() -> Iterator[list[tuple[Failpoint, dict[str, str]]]]:
    """Record the failpoints reached in this process, with their labels."""
    reached: list[tuple[Failpoint, dict[str, str]]] = []
    failpoints.install(lambda failpoint, labels: reached.append((failpoint, dict(labels))))
    yield reached
    failpoints.install(None)


def test_labels_apply_within_their_with_block_and_in_a_pool_only_if_passed_on(
    recorded: list[tuple[Failpoint, dict[str, str]]],
) -> None:
    with failpoints.failpoint_context(dataset="hrrr"), ThreadPoolExecutor(2) as pool:
        with failpoints.failpoint_context(operator="settle"):
            list(pool.map(failpoints.with_context(failpoints.hit), [BEGIN, BEGIN]))
            pool.submit(failpoints.hit, BEGIN).result()
        failpoints.hit(BEGIN)
    failpoints.hit(BEGIN)
    both = {"dataset": "hrrr", "operator": "settle"}
    assert [labels for _, labels in recorded] == [both, both, {}, {"dataset": "hrrr"}, {}]


def test_the_product_installs_no_handler_for_failpoints() -> None:
    package = Path(kfm_dagster.__file__).parent
    uses = re.compile(r"^from kfm_dagster(\.failpoints)? import .*\b(failpoints|install)\b", re.MULTILINE)
    files = (file for file in package.rglob("*.py") if uses.search(file.read_text(encoding="utf-8")))
    assert list(files) == []


ROOT = Path(__file__).resolve().parents[2]
SCHEMA_FILE = ROOT / "docs" / "spec" / "chaos-plan.schema.json"
SCHEMA = json_schema(Plan, urn="kfm.nodd.chaos:v1")
SOUND = {
    "apiVersion": "kfm.nodd.chaos/v1",
    "seed": 7,
    "rules": [
        {"name": "kill", "fault": "kill", "failpoint": "stage.*", "where": {"operator": "settle"}, "nth": 2},
        {"name": "fail", "fault": "error", "failpoint": "object.*.before", "probability": 0.25, "at_most": 9},
        {"name": "wait", "fault": "delay", "failpoint": "queue.*", "milliseconds": 5},
        {"name": "fast-clock", "fault": "skew", "seconds": 300},
    ],
}


def changed(rule: int, **changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(SOUND))
    document["rules"][rule] |= changes
    return document


REFUSED_BY_SCHEMA: dict[str, dict[str, Any]] = {
    "an unknown key": changed(0, surprise=1),
    "an unknown fault": changed(0, fault="explode"),
    "no name": {**SOUND, "rules": [{"fault": "skew", "seconds": 1}]},
    "a name that is no file name": changed(0, name="../up"),
    "a text for a number": changed(1, probability="0.5"),
    "a probability above 1": changed(1, probability=1.5),
    "the zeroth occasion": changed(0, nth=0),
    "an unknown label": changed(0, where={"colour": "blue"}),
    "a delay beyond its bound": changed(2, milliseconds=60_001),
    "a skew of a year": changed(3, seconds=31_536_000),
    "a skew of a year back": changed(3, seconds=-31_536_000),
    "a failpoint for a skew": changed(3, failpoint="*"),
    "no rule": {**SOUND, "rules": []},
    "another version": {**SOUND, "apiVersion": "kfm.nodd.chaos/v2"},
}
REFUSED_BY_LOADER: dict[str, dict[str, Any]] = {
    "an unknown failpoint": changed(0, failpoint="moon.*"),
    "an error at a failpoint without a dependency": changed(1, failpoint="stage.*"),
    "a kill at every occasion": changed(0, nth=None),
    "two ways to count": changed(0, nth=1, at_most=1),
    "a probability for one occasion": changed(0, nth=1, probability=0.5),
    "two rules with one name": {**SOUND, "rules": [SOUND["rules"][0]] * 2},
    "no mapping": [],
}


@pytest.mark.parametrize("dump", [yaml.safe_dump, json.dumps], ids=["yaml", "json"])
def test_valid_and_shipped_plans_are_accepted_by_schema_and_loader(dump: Any, tmp_path: Path) -> None:
    assert json.loads(SCHEMA_FILE.read_text(encoding="utf-8")) == SCHEMA
    jsonschema_rs.Draft202012Validator(SCHEMA).validate(SOUND)
    file = tmp_path / "plan"
    file.write_text(dump(SOUND))
    plan = load_plan(file)
    assert plan.seed == 7
    kill = plan.rules[0]
    assert isinstance(kill, Kill)
    assert kill.failpoints() == [failpoints.Failpoint.STAGE_COMPUTED, failpoints.Failpoint.STAGE_COMMITTED]
    for shipped in sorted((ROOT / "docs" / "chaos").glob("*.yaml")):
        load_plan(shipped)


def test_a_wrong_plan_is_refused_in_one_line() -> None:
    for case in [*REFUSED_BY_SCHEMA, *REFUSED_BY_LOADER]:
        document = (REFUSED_BY_SCHEMA | REFUSED_BY_LOADER)[case]
        assert jsonschema_rs.Draft202012Validator(SCHEMA).is_valid(document) is (
            case in REFUSED_BY_LOADER and case != "no mapping"
        )
        with pytest.raises(ConfigurationError) as refusal:
            parse_plan(yaml.safe_dump(document), source="plan.yaml")
        line = str(refusal.value)
        assert line.startswith("plan.yaml line ")
        assert "\n" not in line
        assert "observed" in line
        assert "expected" in line
        assert refusal.value.exit_code is ExitCode.USAGE
    for text in ["a: [", "\x00"]:
        with pytest.raises(ConfigurationError, match=r"^plan\.yaml (line \d )?is not valid YAML; observed [^\n]+$"):
            parse_plan(text, source="plan.yaml")


@pytest.mark.clause("BEY-09")
@pytest.mark.parametrize(
    ("env", "plan", "reason"),
    [
        (Environment.PROD, SOUND, "faults are never injected in prod"),
        (Environment.DEV, None, "there is no chaos plan"),
        (Environment.DEV, "not there", "cannot be read"),
        (Environment.STAGE, changed(0, surprise=1), "plan.yaml line 3: rules.0.kill.surprise is wrong"),
    ],
)
def test_no_plan_is_active_after_a_refusal(
    env: Environment, plan: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.yaml"
    if isinstance(plan, dict):
        path.write_text(yaml.safe_dump(plan))
    if plan is not None:
        monkeypatch.setenv(PLAN_VARIABLE, str(path))
    settings = Settings(env=env, home=tmp_path / "home")
    with pytest.raises(ConfigurationError, match=reason):
        activate(settings)
    for failpoint in failpoints.Failpoint:
        failpoints.hit(failpoint)  # an active plan would kill, raise and wait
    assert not (tmp_path / "home").exists()
