"""The bundle's two figures, drawn from what was recorded.

The same data give the same bytes: no date, no random ids, and no style of the user's own matplotlib. Belongs here:
what is drawn and where. Does not belong here: where the data come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from io import BytesIO
from typing import TYPE_CHECKING, Any

from kfm_dagster.exports.bundle.configuration import DeclaredTransition, Machine
from kfm_dagster.exports.bundle.content import Attempt, StageTransition, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LIBRARY = "matplotlib"
_ROLLED_BACK = "rolled_back"
_LOOK = {"retry": ("o", "#d9822b"), "replay": ("^", "#2b6cb0"), "rollback": ("X", "#b3261e")}
"""Mark and colour of each kind; the mark alone tells them apart in print."""
_CROWDED = 40
"""Marks of a row beyond which their numbers would lie upon one another."""
_COLUMN = 3.2
"""Inches from a column of states to the next in the graph."""
_ROW = 0.4
"""Columns' widths from a state to the one below it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A mark of the timeline: what happened to a stage, when, until when, and as which attempt."""

    at: datetime
    stage: str
    kind: str
    ended: datetime | None = None
    number: int | None = None


def library_version() -> Mapping[str, str]:
    """Return what draws, and in which version: another version may give other bytes."""
    return {_LIBRARY: version(_LIBRARY)}


def state_transitions_svg(machine: Machine, transitions: Sequence[StageTransition]) -> bytes:
    """Draw the state machine as a graph, each edge with how often it was recorded.

    A transition that was recorded and that the machine does not know is drawn dashed: another machine was in force.
    """
    counts = Counter((each.from_state, each.to_state) for each in transitions)
    with _figures() as new:
        figure = new()
        _draw_graph(figure, machine, counts)
        times = span(each.at for each in transitions)
        runs = len({each.run_id for each in transitions})
        told = f", {_instant(times[0])} to {_instant(times[1])}" if times else ""
        figure.suptitle("State transitions")
        figure.text(
            0.5,
            0.02,
            f"{_many(len(transitions), 'transition')} in {_many(runs, 'run')}{told}",
            ha="center",
            gid="summary",
        )
        return _saved(figure, "svg", {"Date": None, "Creator": "kfm export", "Title": "State transitions"})


def timeline_pdf(transitions: Sequence[StageTransition], attempts: Sequence[Attempt]) -> bytes:
    """Draw retries, replays and rollbacks along time (UTC), a row for each stage."""
    with _figures() as new:
        figure = new()
        draw_timeline(figure, stages_in_order(transitions, attempts), marks(transitions, attempts))
        metadata = {"CreationDate": None, "Creator": "kfm export", "Producer": None, "Title": "Retries and replays"}
        return _saved(figure, "pdf", metadata)


def stages_in_order(transitions: Sequence[StageTransition], attempts: Sequence[Attempt]) -> list[str]:
    """Return every stage once, in the order in which something was first recorded of each: the pipeline's own."""
    seen = [(each.at, each.stage) for each in transitions] + [(each.at, each.stage) for each in attempts]
    return list(dict.fromkeys(stage for _, stage in sorted(seen)))


def marks(transitions: Sequence[StageTransition], attempts: Sequence[Attempt]) -> list[Mark]:
    """Return the timeline's marks in the order of time: every attempt, and every transition to rolled_back."""
    told = [
        Mark(at=each.at, stage=each.stage, kind=each.kind.value, ended=each.ended, number=each.number)
        for each in attempts
    ]
    told += [
        Mark(at=each.at, stage=each.stage, kind="rollback") for each in transitions if each.to_state == _ROLLED_BACK
    ]
    return sorted(told, key=lambda mark: (mark.at, mark.stage, mark.kind, mark.number or 0))


def draw_timeline(figure: Figure, stages: Sequence[str], told: Sequence[Mark]) -> Axes:
    """Draw marks on a figure, a row for each stage, and return its axes: each kind is one collection of points."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415, the extra `release`

    figure.set_layout_engine("constrained")
    figure.set_size_inches(11, 1.8 + 0.4 * max(len(stages), 1))
    axes = figure.add_subplot()
    rows = {stage: row for row, stage in enumerate(stages)}
    for kind, (mark, colour) in _LOOK.items():
        of_kind = [each for each in told if each.kind == kind]
        axes.scatter(
            [each.at for each in of_kind],  # type: ignore[arg-type] # dates are converted by the axis
            [rows[each.stage] for each in of_kind],
            marker=mark,
            color=colour,
            label=f"{kind} ({len(of_kind)})",
            zorder=3,
        )
        for each in of_kind:
            if each.ended is not None:
                axes.plot([each.at, each.ended], [rows[each.stage]] * 2, color=colour, linewidth=3, alpha=0.4)  # type: ignore[arg-type]
    _number(axes, rows, told)
    axes.set_yticks(range(len(stages)), stages)
    axes.set_ylim(max(len(stages), 1) - 0.5, -0.5)
    axes.grid(visible=True, axis="both", alpha=0.3)
    if times := span(time for each in told for time in (each.at, each.ended) if time is not None):
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
        # A single instant has no extent of its own.
        margin = max((times[1] - times[0]) * 0.04, timedelta(seconds=30))
        axes.set_xlim(times[0] - margin, times[1] + margin)  # type: ignore[arg-type]
    else:
        axes.set_xticks([])
    axes.set_xlabel("UTC")
    axes.set_title("Retries, replays and rollbacks" if told else "Nothing was retried, replayed or rolled back")
    figure.legend(loc="outside lower center", ncols=len(_LOOK), frameon=False)
    return axes


def _number(axes: Axes, rows: Mapping[str, int], told: Sequence[Mark]) -> None:
    crowd = Counter(each.stage for each in told)
    for each in told:
        if each.number is not None and crowd[each.stage] <= _CROWDED:
            axes.annotate(
                str(each.number),
                (each.at, rows[each.stage]),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )


def _draw_graph(figure: Figure, machine: Machine, counts: Mapping[tuple[str | None, str], int]) -> None:
    edges = dict(machine.edges)
    unknown = [
        DeclaredTransition(start=start, end=end) for start, end in sorted((s, e) for s, e in counts if s is not None)
    ]
    drawn = [*edges.values(), *(edge for edge in unknown if edge.key not in edges)]
    places = _places(machine.states, drawn)
    columns = 1 + max(x for x, _ in places.values())
    heights = [y for _, y in places.values()]
    low, high = min(heights) - 1.5 * _ROW, max(heights) + 1.5 * _ROW
    # Both axes in one unit, and no margin: what is computed as the middle of an edge is it on paper.
    figure.set_size_inches(_COLUMN * columns, _COLUMN * (high - low))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-0.5, columns - 0.5), ylim=(low, high))
    axes.set_axis_off()
    for edge in drawn:
        _draw_edge(axes, places, edge, counts.get(edge.key, 0), known=edge.key in edges)
    for state, place in places.items():
        axes.annotate(
            state,
            place,
            ha="center",
            va="center",
            gid=f"state-{state}",
            bbox={"boxstyle": "round,pad=0.6", "facecolor": "#eef2f7", "edgecolor": "#334155"},
            zorder=3,
        )
        if begun := counts.get((None, state), 0):
            axes.text(place[0], place[1] + 0.15, f"{begun} begun", ha="center", fontsize=8, gid=f"begun-{state}")


def _draw_edge(
    axes: Axes, places: Mapping[str, tuple[float, float]], edge: DeclaredTransition, count: int, *, known: bool
) -> None:
    from matplotlib.patches import FancyArrowPatch  # noqa: PLC0415, the extra `release`

    (x, y), (to_x, to_y) = places[edge.start], places[edge.end]
    # A backward edge bends, so that it does not lie on the forward one.
    bend = 0.0 if to_x > x else 0.45
    axes.add_patch(
        FancyArrowPatch(
            (x, y),
            (to_x, to_y),
            arrowstyle="-|>",
            connectionstyle=f"arc3,rad={bend}",
            mutation_scale=14,
            shrinkA=36,
            shrinkB=36,
            color="#334155" if known else "#b3261e",
            linestyle="-" if known else "--",
            zorder=1,
        )
    )
    # Where the middle of arc3's curve is: half of its control point's offset, which is the bend times the chord.
    middle = ((x + to_x + bend * (to_y - y)) / 2, (y + to_y - bend * (to_x - x)) / 2)
    blank = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    identity = f"count-{edge.start}-{edge.end}"
    axes.text(*middle, str(count), ha="center", va="bottom", weight="bold", gid=identity, bbox=blank)
    if edge.when:
        axes.text(*middle, edge.when, ha="center", va="top", fontsize=7, color="#475569", bbox=blank)


def _places(states: Sequence[str], edges: Sequence[DeclaredTransition]) -> dict[str, tuple[float, float]]:
    """Place each state in the column of its distance from the first one, the states of a column about its middle."""
    distance = {states[0]: 0}
    queue = [states[0]]
    for state in queue:
        for edge in edges:
            if edge.start == state and edge.end not in distance:
                distance[edge.end] = distance[state] + 1
                queue.append(edge.end)
    others = [*states, *(state for edge in edges for state in (edge.start, edge.end))]
    for state in others:
        distance.setdefault(state, max(distance.values()) + 1)
    columns: dict[int, list[str]] = {}
    for state, column in distance.items():
        columns.setdefault(column, []).append(state)
    return {
        state: (float(column), _ROW * ((len(members) - 1) / 2 - number))
        for column, members in sorted(columns.items())
        for number, state in enumerate(members)
    }


@contextmanager
def _figures() -> Iterator[Callable[[], Figure]]:
    """Let figures be made in matplotlib's own style, whatever the user's is."""
    import matplotlib as mpl  # noqa: PLC0415, the extra `release`
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context():
        mpl.rcdefaults()
        # Text stays text, to be searched and read aloud; ids come from the salt instead of a random number.
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kfm export"})
        yield Figure


def _saved(figure: Figure, form: str, metadata: Mapping[str, Any]) -> bytes:
    written = BytesIO()
    figure.savefig(written, format=form, metadata=dict(metadata))
    return written.getvalue()


def _many(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
