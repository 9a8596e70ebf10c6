"""The state machine of a unit with the number of units in each state, each a link to them.

Does not belong here: the drawing (`drawing/state_graph.py`), or which transitions there are (`ledger/state_machine.py`;
a test makes the two agree).
"""

from __future__ import annotations

from collections.abc import Mapping

from kfm_dagster.drawing.state_graph import Arrow, StateGraph
from kfm_dagster.ledger.state_machine import Status

_GRAPH = StateGraph(
    places={
        Status.PENDING: (0, 0),
        Status.IN_PROGRESS: (1, 0),
        Status.SUCCEEDED: (2, 0),
        Status.FAILED: (1, 1),
        Status.QUARANTINED: (2, 1),
    },
    column=171,
)
ARROWS: Mapping[tuple[str, str], Arrow] = {
    (Status.PENDING, Status.IN_PROGRESS): Arrow(),
    (Status.IN_PROGRESS, Status.SUCCEEDED): Arrow(),
    (Status.IN_PROGRESS, Status.FAILED): Arrow(),
    (Status.FAILED, Status.PENDING): Arrow(bend=0.15),
    (Status.FAILED, Status.QUARANTINED): Arrow(),
    (Status.PENDING, Status.QUARANTINED): Arrow(),
    # Dashed: only a decision on record does it.
    (Status.QUARANTINED, Status.PENDING): Arrow(bend=0.62, dashed=True),
    (Status.SUCCEEDED, Status.PENDING): Arrow(bend=-0.3, dashed=True),
}


def state_diagram(counts: Mapping[Status, int]) -> str:
    """Return the picture as SVG to be put into a page, which has the colours."""
    words = {status: status.replace("_", " ") for status in Status}
    boxes = "".join(
        f'<a href="/units?status={status}" aria-label="{units} {words[status]}">'
        f"{_GRAPH.box(status, [f'{units:,}', words[status]])}</a>"
        for status, units in counts.items()
    )
    said = ", ".join(f"{counts[status]} {words[status]}" for status in Status)
    width, height = _GRAPH.size
    return (
        f'<svg class="states" viewBox="0 0 {width} {height}" role="group" aria-label="Units by state: {said}">'
        f"{_GRAPH.arrows(ARROWS)}{boxes}</svg>"
    )
