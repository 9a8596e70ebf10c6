"""The chaos plan: what it refuses, in one line, and what its published schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from fault_injection.injector import PLAN_VARIABLE, activate
from fault_injection.plan import Kill, Plan, load_plan, parse_plan
from kfm_dagster import failpoints
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.settings import Environment, Settings
from kfm_dagster_tests.schemas import json_schema

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
    "a failpoint that there is not": changed(0, failpoint="moon.*"),
    "an error where nothing can fail": changed(1, failpoint="stage.*"),
    "a kill without end": changed(0, nth=None),
    "two ways to count": changed(0, nth=1, at_most=1),
    "a chance of one occasion": changed(0, nth=1, probability=0.5),
    "a name twice": {**SOUND, "rules": [SOUND["rules"][0]] * 2},
    "no mapping": [],
}


def test_the_published_schema_is_the_model() -> None:
    assert json.loads(SCHEMA_FILE.read_text(encoding="utf-8")) == SCHEMA


@pytest.mark.parametrize("dump", [yaml.safe_dump, json.dumps], ids=["yaml", "json"])
def test_a_sound_plan_is_taken_by_schema_and_loader(dump: Any, tmp_path: Path) -> None:
    jsonschema_rs.Draft202012Validator(SCHEMA).validate(SOUND)
    file = tmp_path / "plan"
    file.write_text(dump(SOUND))
    plan = load_plan(file)
    assert plan.seed == 7
    kill = plan.rules[0]
    assert isinstance(kill, Kill)
    assert kill.failpoints() == [failpoints.Failpoint.STAGE_COMPUTED, failpoints.Failpoint.STAGE_COMMITTED]


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


def test_a_file_that_is_no_yaml_is_refused_in_one_line() -> None:
    for text in ["a: [", "\x00"]:
        with pytest.raises(ConfigurationError, match=r"^plan\.yaml (line 1 )?is not valid YAML; observed [^\n]+$"):
            parse_plan(text, source="plan.yaml")


@pytest.mark.clause("BEY-09")
@pytest.mark.parametrize(
    ("env", "plan", "why"),
    [
        (Environment.PROD, SOUND, "faults are never injected in prod"),
        (Environment.DEV, None, "there is no chaos plan"),
        (Environment.DEV, "not there", "cannot be read"),
        (Environment.STAGE, changed(0, surprise=1), "plan.yaml line 3: rules.0.kill.surprise is wrong"),
    ],
)
def test_no_plan_is_in_force_after_a_refusal(
    env: Environment, plan: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.yaml"
    if isinstance(plan, dict):
        path.write_text(yaml.safe_dump(plan))
    if plan is not None:
        monkeypatch.setenv(PLAN_VARIABLE, str(path))
    settings = Settings(env=env, home=tmp_path / "home")
    with pytest.raises(ConfigurationError, match=why):
        activate(settings)
    for failpoint in failpoints.Failpoint:
        failpoints.hit(failpoint)  # would kill, raise and wait
    assert not (tmp_path / "home").exists()


def test_every_plan_that_ships_is_sound() -> None:
    for example in sorted((ROOT / "docs" / "chaos").glob("*.yaml")):
        load_plan(example)
