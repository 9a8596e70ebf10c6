"""What the path refuses. Belongs here: the one error. Does not belong here: its class on the card (the caller's)."""

from __future__ import annotations

from kfm_dagster.errors import KfmError


class PathError(KfmError):
    """The path quantities of a beam were refused."""
