"""Ids as people type them: whole, or by a prefix that no other id has, as Git takes its hashes.

Belongs here: when a prefix is enough. Does not belong here: which ids there are; each room asks its own table.
"""

from __future__ import annotations

from collections.abc import Collection

from kfm_dagster.errors import KfmError

SHORTEST_PREFIX = 8
"""Characters of an id that may stand for it: the first group of a UUID."""
MATCHES_ASKED = 6
"""Ids that a look-up has to return at most: one more than a refusal names."""


class AmbiguousIdError(KfmError):
    """This is the prefix of more than one id."""


def whole_id(given: str, matches: Collection[str], *, what: str) -> str | None:
    """Return the id that is meant, of those that begin with what was given; None where none does.

    `what` names the kind of id for a refusal. Raises AmbiguousIdError when several begin so, or when fewer characters
    than SHORTEST_PREFIX are given of a longer id.
    """
    if given in matches:
        return given
    if not matches or not given:
        return None
    if len(matches) > 1 or len(given) < SHORTEST_PREFIX:
        named = sorted(matches)[: MATCHES_ASKED - 1]
        raise AmbiguousIdError(
            None if len(matches) > 1 else f"this is too little of a {what}",
            observed=f"{given}: {', '.join(named)}",
            expected=f"a whole {what}, or a prefix of {SHORTEST_PREFIX} characters or more that no other has",
            next_step="give more of the id",
        )
    (found,) = matches
    return found
