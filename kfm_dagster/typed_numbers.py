"""Whole numbers that somebody types, in a command or an address: how large one may be. Nothing else."""

from __future__ import annotations

LARGEST = 999_999_999
"""Nine digits: more than rows, seconds or batches need, and less than the integers of databases, clocks and libraries,
which refuse larger ones each in its own way."""
