"""The pipeline card's files: their meaning, and refusals of wrong files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from kfm_dagster.alerts.plan import ALERTS, AlertPlan
from kfm_dagster.cli.main import kfm
from kfm_dagster.configs import CardError, own_folder, parse
from kfm_dagster.followers.announcements.plan import ANNOUNCEMENTS, AnnouncementPlan
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.retention import RETENTION, RetentionPolicy
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import (
    POSSIBLE,
    REPLAY_PLAN,
    STATE_MACHINE,
    Card,
    Condition,
    ErrorClass,
    ReplayPlan,
    StageState,
    StateMachine,
)
from kfm_dagster.stages.gates.verdict import Gate, Stop
from kfm_dagster_tests.schemas import json_schema

UNDECLARED = "delivery: at_least_once\n"
DECLARED = """delivery: exactly_once
evidence: {campaign: make soak PART=chaos-sqlite, commit: 0123456789abcdef0123456789abcdef01234567, units: 9, kills: 2,
  lost: 0, duplicates: 0}
"""
TEXTS = {name: (own_folder() / name).read_text(encoding="utf-8") for name in (STATE_MACHINE, REPLAY_PLAN, ALERTS)}

STRICTER = {("gates", gate, "on_failure") for gate in ("G1", "G3", "G4", "G5", "G6", "G7", "G8")} | {
    ("clock", "unlocked"),
    ("human_review",),
}
"""The keys in which configs/strict differs from the shipped card."""
ROOT = Path(__file__).resolve().parents[2]
CLAIMING = ["README.md", "CONTRIBUTING.md", "pyproject.toml", "kfm_dagster/__init__.py"] + [
    f"{page.relative_to(ROOT)}"
    for page in sorted((ROOT / "docs").glob("**/*.md"))
    if page.parent.name not in {"adr", "spec"}
]
MODELS: dict[str, type[BaseModel]] = {
    RETENTION: RetentionPolicy,
    STATE_MACHINE: StateMachine, REPLAY_PLAN: ReplayPlan, ALERTS: AlertPlan, ANNOUNCEMENTS: AnnouncementPlan,
}  # fmt: skip
WRONG: dict[str, list[tuple[str, str, str, str]]] = {
    STATE_MACHINE: [
        ("max_retries: 3", "max_retries: -1", "line 10: retry_policy.max_retries", "observed -1"),
        ("deadline: 10m", "deadline: soon", "line 10: retry_policy.deadline", "such as 10m"),
        ("exp+jitter", "guess", "line 10: retry_policy.backoff", "'const', 'exp'"),
        ("deadline: 10m", "deadline: 10m, retry_on: [E_DIM]", "line 10: retry_policy.retry_on", "blindly"),
        ("review: [E_DIM,", "review: [E_SYNC,", "the document", "E_SYNC is in human_review and in retry_policy"),
        ("G1..G3", "G1..G9", "line 6: transitions.0", "G1..G9 is not a range"),
        ("G1..G3", "has_checkpoint", "line 6: transitions.0", "on has_checkpoint, only on deps_succeeded;"),
        ("any(S1..S5)", "any(S1..S5", "line 8: transitions.2", "consist of names, &&, ||, ! and matching"),
        ("from: failed", "from: succeeded", "line 9: transitions.3", "is not a transition"),
        ("from: failed, to: rolled_back", "from: running, to: failed", "line 9: transitions.3", "depend"),
        ('when: "any(S1..S5)"', "whenever: x", "line 8: transitions.2.whenever", "expected when;"),
        ("[pending, running,", "[running,", "line 4: states", "pending"),
        ("key: run_id+partition", "key: partition", "line 13: idempotency_key", "run_id and any of"),
        ("min_anchor_coverage: 0.9", "min_anchor_coverage: 0.5", "gates.G2.min_anchor", "equal to 0.9"),
        ("min_points: 2", "min_points: 1", "gates.G3.min_points", "equal to 2"),
        ("  G5:", "  G9:", "line 24: gates.G9", "unknown key 'G9'"),
        (", min_coverage: 0.9", "", "line 26: gates.G6.min_coverage", "observed nothing; expected a value"),
        (
            "min_share: 0.95}\n  G8",
            "min_share: 0.95, min_p_dim: 1.0}\n  G8",
            "line 27: gates.G7.min_p_dim",
            "unknown key 'min_p_dim'; expected one of on_failure, k_sigma, min_share",
        ),
        ("unlocked: restrict", "unlocked: ignore", "clock.unlocked", "'reject' or 'restrict'"),
        ("delivery: at_least_once", "delivery: exactly_once", "the document", "exactly_once needs evidence"),
        ("delivery: at_least_once", "delivery: twice", "line 32: delivery", "'exactly_once'"),
        (UNDECLARED, DECLARED.replace("lost: 0", "lost: 1"), "evidence.lost", "observed 1"),
        (UNDECLARED, DECLARED.replace("es: 0}", "es: 2}"), "evidence.dupl", "observed 2"),
        (UNDECLARED, DECLARED.replace("commit: 01", "commit: g1"), "evidence.commit", "match"),
        (UNDECLARED, DECLARED.replace("kills: 2", "kills: 0"), "evidence.kills", "equal to 1"),
        ('version: "1.0.0"', 'version: "2.0.0"', "line 3: version", "'1.0.0'"),
        ("version:", "version=", "line 4 is not valid YAML", "mapping values"),
        ("max_retries: 3", "max_retries: 3, max_retries: 9", "line 10 is not valid", "'max_retries' comes"),
        ("deadline: 10m", "deadline: 3651d", "line 10: retry_policy.deadline", "no more than 3650d"),
        ("tau_calib: 24h", f"tau_calib: {'9' * 400}d", "line 30: clock.tau_calib", "no more than 3650d"),
        ("[message_parse, int", "[mesage_parse, int", "line 15: checkpoints.0", "settle, path_arrival"),
        ('  - {from: running, to: failed, when: "any(S1..S5)"}\n', "", "transitions", "running > failed is missing"),
        (
            "  - {from: running, to: failed",
            '  - {from: pending, to: running, when: "deps_succeeded"}\n  - {from: running, to: failed',
            "line 5: transitions",
            "pending > running is declared twice",
        ),
        ("max_retries: 3", "max_retrys: 3", "line 10: retry_policy.max_retrys", "expected max_retries;"),
        (
            UNDECLARED,
            DECLARED.replace("make soak PART", '"make\\e[2J').replace("sqlite,", 'sqlite",'),
            "evidence.campaign",
            "match",
        ),
        # Half of a surrogate pair, and values that are not of their type.
        ('version: "1.0.0"', 'version: "\\ud800"', "line 3 is not valid YAML", "invalid Unicode character"),
        ("max_retries: 3", "max_retries: 2025-04-31", "line 10 is not valid YAML", "day is out of range"),
        ("max_retries: 3", "max_retries: !!int foo", "line 10 is not valid YAML", "'foo' is not a value"),
        ("max_retries: 3", "max_retries: !!bool foo", "line 10 is not valid YAML", "'foo' is not a value"),
        ('when: "any(S1..S5)"', f'when: "{"(" * 5000}"', "line 8: transitions.2", "consist of names, &&, ||"),
    ],
    REPLAY_PLAN: [
        ("reverse_topology", "any", "line 5: replay.order", "reverse_topology"),
        ("open_ticket", "open_tickets", "line 10: alerts.on_divergence.1", "notify, page_ops, open_ticket"),
        ("primary_keys: true", "primary_key: true", "line 8: replay.verify.primary_key", "expected primary_keys;"),
        ("alerts:", "reasons: {incident: mine}\nalerts:", "line 9: reasons", "the ledger defines"),
        ("alerts:", "reasons: {Yearly: x}\nalerts:", "line 9: reasons.Yearly", "match"),
        ("alerts:", "reasons: {yearly: ''}\nalerts:", "line 9: reasons.yearly", "match"),
        ("alerts:", "reasons: {yes: x}\nalerts:", "line 9 is not valid YAML", "'yes' is true or false"),
        ("alerts:", "reasons: {~: x}\nalerts:", "line 9 is not valid YAML", "'~' is nothing"),
        ("alerts:", 'reasons: {"a\\0": x}\nalerts:', "line 9: reasons.a", "match"),
        ("alerts:", 'reasons: {yearly: "x\\0"}\nalerts:', "line 9: reasons.yearly", "match"),
        ("alerts:", 'reasons: {yearly: "x\\ny"}\nalerts:', "line 9: reasons.yearly", "match"),
        ("hash: true", "7: true", "line 8: replay.verify.7", "one of hash, primary_keys;"),
    ],
    ALERTS: [
        ("notify, page_ops, open_ticket", "notify, open_ticket", "line 7: levels.critical.1", "notify, open_ticket"),
        ("notify, page_ops", "Notify!, page_ops", "line 5: channels.0", "should match pattern"),
        ("critical: [notify", "crucial: [notify", "line 7: levels.crucial", "expected critical;"),
        ("threshold: 4", "threshold: 0", "line 13: rules.state_flapping.threshold", "equal to 1"),
        ("window: 15m", "window: 0m", "line 15: rules.retry_storm.window", "longer than 0"),
        (
            "escalate_after: 30m",
            "escalate_after: 0s",
            "line 15: rules.retry_storm.escalate_after",
            "longer than 0",
        ),
        ("suppress: 30m", "suppress: often", "line 15: rules.retry_storm.suppress", "such as 10m"),
        ("level: critical, suppress: 1h", "level: odd, suppress: 1h", "line 21: rules.unlock.level", "'critical'"),
        ("  covariance:", "  variance:", "rules.variance", "expected covariance;"),
        ("suppress: 30m, ", "", "line 15: rules.retry_storm.suppress", "observed nothing"),
    ],
}


@pytest.mark.clause("PCS-14", "PCS-18")
def test_a_wrong_card_is_refused_with_file_line_and_reason(tmp_path: Path) -> None:
    for file, (old, new, where, why) in [(file, row) for file, rows in WRONG.items() for row in rows]:
        for name, text in TEXTS.items():
            assert name != file or old in text
            (tmp_path / name).write_text(text.replace(old, new, 1) if name == file else text, encoding="utf-8")
        with pytest.raises(CardError) as refused:
            read_configuration(Settings(configs_dir=tmp_path))
        line = str(refused.value)
        assert line.startswith(f"{tmp_path / file} line "), (line, new)
        assert where in line, (line, where)
        assert why in line, (line, why)


@pytest.mark.clause("PCS-14")
@pytest.mark.parametrize("file", [STATE_MACHINE, REPLAY_PLAN, ALERTS])
def test_a_file_that_is_not_text_is_refused_with_its_line(tmp_path: Path, file: str) -> None:
    for name, text in TEXTS.items():
        (tmp_path / name).write_bytes(text.encode().replace(b"\n", b"\n# \xe9\n", 1) if name == file else text.encode())
    with pytest.raises(CardError, match=rf"{file} line 2 is no UTF-8 text; observed the byte 0xe9; next: save"):
        Card.load(tmp_path)


@pytest.mark.clause("PCS-21")
def test_exactly_once_needs_its_evidence_and_at_least_once_is_the_default() -> None:
    shipped = TEXTS[STATE_MACHINE]
    assert parse(shipped, StateMachine, source="x").delivery == "at_least_once"
    undeclared = shipped.replace(UNDECLARED, "")
    assert parse(undeclared, StateMachine, source="x").delivery == "at_least_once"
    declared = parse(shipped.replace(UNDECLARED, DECLARED), StateMachine, source="x")
    assert declared.delivery == "exactly_once"
    assert (declared.evidence.units, declared.evidence.kills) == (9, 2)


@pytest.mark.clause("PCS-21")
def test_no_text_of_the_product_claims_exactly_once() -> None:
    texts = {page: (ROOT / page).read_text("utf-8") for page in CLAIMING}
    texts["kfm --help"] = CliRunner().invoke(kfm, ["--help"]).output
    # Only the card has the value `exactly_once`; texts promise that an effect is applied once, not a delivery.
    claims = [path for path, text in texts.items() if re.search(r"(?i)exactly[ -]once", " ".join(text.split()))]
    assert claims == []


def test_omitted_files_and_keys_have_the_values_of_this_release(tmp_path: Path) -> None:
    (tmp_path / STATE_MACHINE).write_text(TEXTS[STATE_MACHINE], encoding="utf-8")
    assert Card.load(tmp_path).replay_plan == Card.load().replay_plan
    assert Card.load(tmp_path).alerts == Card.load().alerts
    (tmp_path / ALERTS).write_text(TEXTS[ALERTS].replace("threshold: 20", "threshold: 30"), encoding="utf-8")
    assert Card.load(tmp_path).alerts.rules.retry_storm.threshold == 30


def test_a_folder_without_the_card_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(CardError, match=rf"no file {folder}/state_machine\.yaml.*copy configs/"):
            Card.load(folder)


@pytest.mark.clause("PCS-01")
def test_the_shipped_card_has_the_transitions_and_conditions_of_the_specification() -> None:
    machine = Card.load().machine
    assert [(transition.origin, transition.to) for transition in machine.transitions] == list(POSSIBLE)
    gates, every = {*Gate}, {*Gate, *Stop}
    start = machine.condition(StageState.PENDING, StageState.RUNNING)
    end = machine.condition(StageState.RUNNING, StageState.SUCCEEDED)
    fail = machine.condition(StageState.RUNNING, StageState.FAILED)
    back = machine.condition(StageState.FAILED, StageState.ROLLED_BACK)
    assert [gate for gate in Gate if not start.holds({"deps_succeeded", *(gates - {gate})})] == [*Gate][:3]
    assert not start.holds(gates)
    assert [gate for gate in Gate if not end.holds(gates - {gate})] == [*Gate]
    assert [stop for stop in Stop if not end.holds({*gates, stop})] == [*Stop]
    assert [stop for stop in Stop if fail.holds({stop})] == [*Stop]
    assert not fail.holds(gates)
    assert [back.holds(facts) for facts in (every, {"has_checkpoint"}, {"do_compensate"})] == [False] * 3
    assert back.holds({"has_checkpoint", "do_compensate"})
    assert ErrorClass.E_DIM not in machine.retry_policy.retry_on


NAMES = ["deps_succeeded", "has_checkpoint", *Gate, *Stop]


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> tuple[str, str]:
    """Draw a condition, and the same condition in Python over a set `f`."""
    kind = draw(st.sampled_from(["name", "gates", "stops", "not", "and", "or"] if depth else ["name"]))
    if kind == "name":
        name = draw(st.sampled_from(NAMES))
        return name, f"({str(name)!r} in f)"
    if kind in {"gates", "stops"}:
        series = [member.value for member in (Gate if kind == "gates" else Stop)]
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(series) - 1)] * 2)))
        quantifier = draw(st.sampled_from(["", "any", "all"]))
        text = f"{series[first]}..{series[last]}"
        meant = quantifier or ("all" if kind == "gates" else "any")
        names = series[first : last + 1]
        return (f"{quantifier}({text})" if quantifier else text), f"{meant}(n in f for n in {names})"
    left, python = draw(conditions(depth=depth - 1))
    if kind == "not":
        return f"!({left})", f"(not {python})"
    right, other_python = draw(conditions(depth=depth - 1))
    sign, word = ("&&", "and") if kind == "and" else ("||", "or")
    return (
        f"({left}) {sign} {right}" if kind == "or" else f"({left}){sign}({right})",
        f"({python} {word} {other_python})",
    )


@given(condition=conditions(), facts=st.sets(st.sampled_from([str(name) for name in NAMES])))
def test_a_condition_equals_the_same_expression_in_python(condition: tuple[str, str], facts: set[str]) -> None:
    text, python = condition
    assert Condition.parse(text).holds(facts) == eval(python, {"f": facts})


@pytest.mark.parametrize("text", [
    "", "G1 G2", "G1 &", "&& G1", "(G1", "G1)", "any G1", "any(G1", "!(", "G1..", "é", "G3..G1", "G1..S2", "(G1)(G2)",
    "any(G1 && G2)", "G9", "()", "has_checkpoint..G1", "G1, G2", "(" * 400, "!" * 100_000 + "G1",
])  # fmt: skip
def test_an_invalid_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"does not consist|not a range"):
        Condition.parse(text)


def test_a_duration_is_a_number_and_a_unit_of_time() -> None:
    text = TEXTS[STATE_MACHINE]
    for written, seconds in (("250ms", 0.25), ("1.5h", 5400), ("2d", 172_800), ("90s", 90)):
        card = parse(text.replace("10m", written), StateMachine, source="here")
        assert card.retry_policy.deadline.total_seconds() == seconds


@pytest.mark.parametrize("file", MODELS)
def test_the_published_schema_equals_the_model_and_accepts_the_shipped_card(file: str) -> None:
    name = file.removesuffix(".yaml").replace("_", "-")
    schema = json.loads((ROOT / "docs" / "spec" / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert schema == json_schema(MODELS[file], urn=f"kfm:nodd:{name}:v1")
    validator = jsonschema_rs.Draft202012Validator(schema)
    document = yaml.safe_load((own_folder() / file).read_text(encoding="utf-8"))
    validator.validate(document)
    assert not validator.is_valid({**document, "more": 1})
    assert not validator.is_valid({"version": document["version"]})


@pytest.mark.clause("PCS-20")
def test_the_strict_card_differs_only_in_the_effects_of_faults() -> None:
    shipped, strict = (_leaves(Card.load(folder).machine.model_dump()) for folder in (None, own_folder() / "strict"))
    assert shipped.keys() == strict.keys()
    assert {path for path, value in shipped.items() if strict[path] != value} == STRICTER


def _leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {key: leaf for name, part in value.items() for key, leaf in _leaves(part, (*path, str(name))).items()}
