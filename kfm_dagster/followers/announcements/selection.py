"""Selection: match a subscription's Items by CQL2 and by a box.

Belongs here: conditions on an Item. Does not belong here: later changes of an announced Item; these are sent without
a match (`announcer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kfm_dagster.redaction import redact

Matches = Callable[[Mapping[str, Any]], bool]


def compiled(text: str | Mapping[str, Any]) -> Matches:
    """Compile a CQL2 filter from text or JSON. Raises ValueError with the expected input.

    If an Item lacks a property that decides, the result is unknown (CQL2, 6.5, three-valued logic). Such an Item does
    not match.
    """
    try:
        from cql2 import Expr  # noqa: PLC0415, an extra
    except ImportError:
        raise ValueError("the extra announcements (pip install 'kfm-dagster[announcements]'), or bbox alone") from None
    try:
        expression = Expr(dict(text) if isinstance(text, Mapping) else text)
        expression.validate()
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"CQL2: {redact(str(error), 200)}") from None

    def matches(item: Mapping[str, Any]) -> bool:
        try:
            return expression.matches(dict(item))
        except Exception:  # the result is unknown
            return False

    return matches


def within(bbox: Sequence[float]) -> Matches:
    """Match Items with a footprint that meets a box (west, south, east, north)."""
    import shapely  # noqa: PLC0415, only where a box is declared
    from shapely.geometry import shape  # noqa: PLC0415, likewise

    west, south, east, north = bbox
    parts = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    area = shapely.union_all([shapely.box(first, south, last, north) for first, last in parts])
    shapely.prepare(area)

    def matches(item: Mapping[str, Any]) -> bool:
        geometry = item.get("geometry")
        return geometry is not None and bool(shapely.intersects(area, shape(geometry)))

    return matches
