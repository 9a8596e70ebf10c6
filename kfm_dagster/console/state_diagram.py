"""The state machine of a unit as one SVG picture with the number of units in each state, each a link to them.

Belongs here: the drawing. Does not belong here: which transitions there are (`ledger/state_machine.py`; a test makes
the two agree).
"""

from __future__ import annotations

from collections.abc import Mapping

from kfm_dagster.ledger.state_machine import Status

BOX = (122, 54)
"""Pixels: width and height of a state."""
PLACES: Mapping[Status, tuple[int, int]] = {
    Status.PENDING: (8, 30),
    Status.IN_PROGRESS: (179, 30),
    Status.SUCCEEDED: (350, 30),
    Status.FAILED: (179, 132),
    Status.QUARANTINED: (350, 132),
}
EDGES: Mapping[tuple[Status, Status], str] = {
    (Status.PENDING, Status.IN_PROGRESS): "M130 57H176",
    (Status.IN_PROGRESS, Status.SUCCEEDED): "M301 57H347",
    (Status.IN_PROGRESS, Status.FAILED): "M240 84V129",
    (Status.FAILED, Status.PENDING): "M179 159H92V87",
    (Status.FAILED, Status.QUARANTINED): "M301 159H347",
    (Status.PENDING, Status.QUARANTINED): "M52 84V204H392V189",
    (Status.QUARANTINED, Status.PENDING): "M432 186V220H24V87",
    (Status.SUCCEEDED, Status.PENDING): "M411 30V12H69V27",
}
OVERRIDE = " override"
"""Dashed: what only a decision on record does."""
_ONLY_BY_DECISION = frozenset({(Status.QUARANTINED, Status.PENDING), (Status.SUCCEEDED, Status.PENDING)})


def state_diagram(counts: Mapping[Status, int]) -> str:
    """Return the picture as SVG to be put into a page, which has the colours."""
    edges = "".join(
        f'<path class="edge{OVERRIDE if edge in _ONLY_BY_DECISION else ""}" d="{path}" marker-end="url(#head)"/>'
        for edge, path in EDGES.items()
    )
    said = ", ".join(f"{counts[status]} {_words(status)}" for status in PLACES)
    return (
        f'<svg class="states" viewBox="0 0 480 228" role="group" aria-label="Units by state: {said}">'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{edges}{''.join(_box(status, counts[status]) for status in PLACES)}</svg>"
    )


def _box(status: Status, units: int) -> str:
    x, y = PLACES[status]
    width, height = BOX
    middle = x + width // 2
    return (
        f'<a href="/units?status={status}" aria-label="{units} {_words(status)}">'
        f'<rect class="state {status}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        f'<text class="count" x="{middle}" y="{y + 24}" text-anchor="middle">{units:,}</text>'
        f'<text x="{middle}" y="{y + 42}" text-anchor="middle">{_words(status)}</text></a>'
    )


def _words(status: Status) -> str:
    return status.replace("_", " ")
