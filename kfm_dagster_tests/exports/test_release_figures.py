"""The bundle's figures show every recorded transition and attempt, with correct counts."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kfm_dagster.exports.bundle.content import Attempt, StageTransition
from kfm_dagster.exports.bundle.figures import (
    draw_timeline,
    marks,
    stages_in_order,
    state_transitions_svg,
    timeline_pdf,
)
from kfm_dagster_tests.exports import bundle_sample

MACHINE = bundle_sample.release().card.machine
STAGES = [f"nexrad-l2.{operator}" for operator in bundle_sample.OPERATORS]
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: bytes) -> dict[str, str]:
    """Return texts by their id, and the texts of groups by the group's id."""
    root = ET.fromstring(svg)
    by_id = {text.get("id", ""): text.text or "" for text in root.iter(f"{SVG}text")}
    return by_id | {group.get("id", ""): " ".join(group.itertext()) for group in root.iter(f"{SVG}g")}


def counts(svg: bytes) -> dict[str, str]:
    return {name.removeprefix("count-"): text for name, text in texts(svg).items() if name.startswith("count-")}


@pytest.mark.clause("PCS-19")
def test_the_graph_has_every_state_and_the_count_of_each_transition() -> None:
    for copies in (0, 1, 3):
        transitions = bundle_sample.transitions() * copies
        svg = state_transitions_svg(MACHINE, transitions)
        recorded = Counter((transition.from_state, transition.to_state) for transition in transitions)
        edges = [(edge.origin, edge.to) for edge in MACHINE.transitions]
        assert counts(svg) == {"-".join(edge): str(recorded[edge]) for edge in edges}
        shown = texts(svg)
        boxes = {f"state-{state}": state for state in MACHINE.states}
        boxes["state-pending"] = f"{recorded[None, 'pending']} begun pending" if copies else "pending"
        assert boxes == {name: text for name, text in shown.items() if name.startswith("state-")}
        period = ", 2025-12-03 06:00:00 UTC to 2025-12-03 09:10:00 UTC" if copies else ""
        assert shown["summary"] == f"{len(transitions)} transitions in {4 if copies else 0} runs{period}"
        for edge in MACHINE.transitions:
            assert shown[f"when-{edge.origin}-{edge.to}"] == edge.when


def test_a_transition_unknown_to_the_machine_is_drawn_dashed() -> None:
    recorded = bundle_sample.transitions()
    transitions = [*recorded, replace(recorded[0], from_state="failed", to_state="pending")]
    known, unknown = (state_transitions_svg(MACHINE, shown) for shown in (transitions[:-1], transitions))
    assert counts(unknown) == {**counts(known), "failed-pending": "1"}
    assert (known.count(b"edge override"), unknown.count(b"edge override")) == (0, 1)


def timeline(stages: Sequence[str], shown: Any) -> Any:
    """Return the axes of a timeline."""
    from matplotlib.figure import Figure

    return draw_timeline(Figure(), stages, shown)


def drawn(transitions: Sequence[StageTransition], attempts: Sequence[Attempt]) -> dict[str, list[tuple[object, str]]]:
    """Return time and stage of each drawn mark, by the mark's kind."""
    from matplotlib.dates import num2date

    stages = stages_in_order(transitions, attempts)
    axes = timeline(stages, marks(transitions, attempts))
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == stages
    drawn_marks = {}
    for points in axes.collections:
        kind, _, count = str(points.get_label()).partition(" ")
        offsets = [(num2date(x), rows[round(y)]) for x, y in points.get_offsets()]
        assert count == f"({len(offsets)})"
        drawn_marks[kind] = offsets
    return drawn_marks


@pytest.mark.clause("PCS-19")
def test_the_timeline_marks_every_retry_replay_and_rollback_in_the_row_of_its_stage() -> None:
    transitions, attempts = bundle_sample.transitions(), bundle_sample.attempts()
    assert stages_in_order(transitions, attempts) == STAGES
    expected: dict[str, list[tuple[object, str]]] = {
        kind: [(attempt.at, attempt.stage) for attempt in attempts if attempt.kind == kind]
        for kind in ("retry", "replay")
    }
    expected["rollback"] = [
        (transition.at, transition.stage) for transition in transitions if transition.to_state == "rolled_back"
    ]
    assert drawn(transitions, attempts) == expected
    assert {kind: len(points) for kind, points in expected.items()} == {"retry": 3, "replay": 1, "rollback": 1}


def test_the_timeline_shows_the_duration_and_number_of_an_attempt() -> None:
    from matplotlib.dates import num2date

    attempts = bundle_sample.attempts()
    axes = timeline(STAGES, marks([], attempts))
    lasted = [tuple(line.get_xdata()) for line in axes.lines]
    assert sorted(lasted) == sorted((attempt.at, attempt.ended) for attempt in attempts if attempt.ended is not None)
    assert sorted(text.get_text() for text in axes.texts) == sorted(str(attempt.number) for attempt in attempts)
    first, last = (num2date(limit) for limit in axes.get_xlim())
    assert first < min(attempt.at for attempt in attempts)
    assert last > max(attempt.ended or attempt.at for attempt in attempts)


def test_a_crowded_row_has_marks_without_numbers_and_an_empty_timeline_has_a_title() -> None:
    [first, *_] = bundle_sample.attempts()
    crowd = [replace(first, at=first.at + timedelta(seconds=second), number=second + 1) for second in range(41)]
    assert not timeline(STAGES, marks([], crowd)).texts
    assert len(drawn([], crowd)["retry"]) == 41
    assert len(timeline(STAGES, marks([], crowd[:40])).texts) == 40
    axes = timeline([], [])
    assert axes.get_title() == "Nothing was retried, replayed or rolled back"
    assert not len(axes.get_xticks())


@pytest.mark.clause("PCS-19")
def test_the_pdf_has_the_texts_of_the_drawing() -> None:
    pdf = timeline_pdf(bundle_sample.transitions(), bundle_sample.attempts())
    texts_of_pdf = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:
            text = zlib.decompress(stream)
        except zlib.error:
            continue
        for block in re.findall(rb"BT(.*?)ET", text, re.DOTALL):
            pieces = re.findall(rb"\(((?:\\.|[^\\)])*)\)", block)
            texts_of_pdf.append(re.sub(rb"\\(.)", rb"\1", b"".join(pieces)).decode("latin-1"))
    assert {"retry (3)", "replay (1)", "rollback (1)", "UTC", "Retries, replays and rollbacks", *STAGES} <= set(
        texts_of_pdf
    )
    assert b"/CreationDate" not in pdf
