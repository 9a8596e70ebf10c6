"""The bundle's two figures, drawn from recorded transitions and attempts.

The same data give the same bytes: no date, no random ids, and no style of the user's own matplotlib. Belongs here: the
drawing. Does not belong here: the source of the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from io import BytesIO
from typing import TYPE_CHECKING

from kfm_dagster.drawing.svg import Arrow, StateGraph
from kfm_dagster.exports.bundle.content import Attempt, StageTransition, span
from kfm_dagster.plural import counted
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.card import POSSIBLE, StageState, StateMachine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LIBRARY = "matplotlib"
_LOOK = {
    AuditKind.RETRY: ("retry", "o", "#d9822b"),
    AuditKind.REPLAY: ("replay", "^", "#2b6cb0"),
    AuditKind.COMPENSATION: ("rollback", "X", "#b3261e"),
}
"""Name, mark and colour of each kind; without colour, the mark distinguishes the kinds."""
_CROWDED = 40
"""Maximum marks of a stage's row that get numbers. In a row with more marks, numbers would overlap."""
_GRAPH = StateGraph(
    places={
        StageState.PENDING: (0, 0),
        StageState.RUNNING: (1, 0),
        StageState.SUCCEEDED: (2, 0),
        StageState.FAILED: (2, 1),
        StageState.ROLLED_BACK: (3, 1),
    },
    column=320,
)
_STYLE = (
    "text{font:12px sans-serif;fill:#1d2733}.count{font-weight:700}.state{fill:#eef2f7;stroke:#334155}"
    ".edge{fill:none;stroke:#334155}.override{stroke:#b3261e;stroke-dasharray:4 3}"
    ".label{paint-order:stroke;stroke:#fff;stroke-width:3}"
)


def library_version() -> Mapping[str, str]:
    """Return the drawing library and its version, because another version may draw other bytes."""
    return {_LIBRARY: version(_LIBRARY)}


def state_transitions_svg(machine: StateMachine, transitions: Sequence[StageTransition]) -> bytes:
    """Draw the state machine, each transition with its condition and its number of records.

    A recorded transition that the machine lacks is dashed: it was recorded under another card.
    """
    counts = Counter((move.from_state, move.to_state) for move in transitions)
    conditions = {(rule.origin.value, rule.to.value): rule.when for rule in machine.transitions}
    recorded = {(start, end) for start, end in counts if start is not None}
    arrows = {
        edge: Arrow(
            labels=[
                ("-".join(("count", *edge)), str(counts[edge])),
                ("-".join(("when", *edge)), conditions.get(edge, "")),
            ],
            dashed=edge not in conditions,
            bend=0.0 if edge in POSSIBLE else 0.5,
        )
        for edge in [*conditions, *sorted(recorded - conditions.keys())]
    }
    starts = {end: f"{count} begun" for (start, end), count in counts.items() if start is None}
    boxes = (
        _GRAPH.box(state, [starts[state], state] if state in starts else [state], name=f"state-{state}")
        for state in machine.states
    )
    times = span(move.at for move in transitions)
    period = f", {_instant(times[0])} to {_instant(times[1])}" if times else ""
    runs = len({move.run_id for move in transitions})
    width, height = _GRAPH.size
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><title>State transitions</title>'
        f"<style>{_STYLE}</style>{_GRAPH.arrows(arrows)}{''.join(boxes)}"
        f'<text id="summary" x="{width // 2}" y="{height - 10}" text-anchor="middle">'
        f"{counted(len(transitions), 'transition')} in {counted(runs, 'run')}{period}</text></svg>\n"
    ).encode()


def timeline_pdf(transitions: Sequence[StageTransition], attempts: Sequence[Attempt]) -> bytes:
    """Draw retries, replays and rollbacks over time (UTC), a row for each stage."""
    import matplotlib as mpl  # noqa: PLC0415, the extra `release`
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context():
        mpl.rcdefaults()
        figure, written = Figure(), BytesIO()
        draw_timeline(figure, stages_in_order(transitions, attempts), marks(transitions, attempts))
        metadata = {"CreationDate": None, "Creator": "kfm export", "Producer": None, "Title": "Retries and replays"}
        figure.savefig(written, format="pdf", metadata=metadata)
        return written.getvalue()


def stages_in_order(transitions: Sequence[StageTransition], attempts: Sequence[Attempt]) -> list[str]:
    """Return every stage once, in the order of its first record, which is the pipeline's order."""
    records: tuple[StageTransition | Attempt, ...] = (*transitions, *attempts)
    return list(dict.fromkeys(stage for _, stage in sorted((record.at, record.stage) for record in records)))


def marks(transitions: Sequence[StageTransition], attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the timeline's marks by time: every attempt, and every transition to rolled_back."""
    rollbacks = [
        Attempt(at=move.at, stage=move.stage, kind=AuditKind.COMPENSATION)
        for move in transitions
        if move.to_state == StageState.ROLLED_BACK
    ]
    return sorted([*attempts, *rollbacks], key=lambda mark: (mark.at, mark.stage, mark.kind, mark.number or 0))


def draw_timeline(figure: Figure, stages: Sequence[str], attempts: Sequence[Attempt]) -> Axes:
    """Draw marks on a figure: a row per stage, a collection of points per kind. Return the axes."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415, the extra `release`

    figure.set_layout_engine("constrained")
    figure.set_size_inches(11, 1.8 + 0.4 * max(len(stages), 1))
    axes = figure.add_subplot()
    rows = {stage: row for row, stage in enumerate(stages)}
    for kind, (name, mark, colour) in _LOOK.items():
        of_kind = [attempt for attempt in attempts if attempt.kind == kind]
        axes.scatter(
            [attempt.at for attempt in of_kind],  # type: ignore[arg-type] # dates are converted by the axis
            [rows[attempt.stage] for attempt in of_kind],
            marker=mark,
            color=colour,
            label=f"{name} ({len(of_kind)})",
            zorder=3,
        )
        for attempt in of_kind:
            if attempt.ended is not None:
                axes.plot([attempt.at, attempt.ended], [rows[attempt.stage]] * 2, color=colour, linewidth=3, alpha=0.4)  # type: ignore[arg-type]
    _number(axes, rows, attempts)
    axes.set_yticks(range(len(stages)), stages)
    axes.set_ylim(max(len(stages), 1) - 0.5, -0.5)
    axes.grid(visible=True, axis="both", alpha=0.3)
    if times := span(time for attempt in attempts for time in (attempt.at, attempt.ended) if time is not None):
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
        # So that the axis has an extent even if all marks are of one instant.
        margin = max((times[1] - times[0]) * 0.04, timedelta(seconds=30))
        axes.set_xlim(times[0] - margin, times[1] + margin)  # type: ignore[arg-type]
    else:
        axes.set_xticks([])
    axes.set_xlabel("UTC")
    axes.set_title("Retries, replays and rollbacks" if attempts else "Nothing was retried, replayed or rolled back")
    figure.legend(loc="outside lower center", ncols=len(_LOOK), frameon=False)
    return axes


def _number(axes: Axes, rows: Mapping[str, int], attempts: Sequence[Attempt]) -> None:
    totals = Counter(attempt.stage for attempt in attempts)
    for attempt in attempts:
        if attempt.number is not None and totals[attempt.stage] <= _CROWDED:
            axes.annotate(
                str(attempt.number),
                (attempt.at, rows[attempt.stage]),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
