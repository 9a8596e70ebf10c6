"""How many of what, in words: `1 unit`, `2 units`. Nothing else belongs here."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless it is one of it."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
