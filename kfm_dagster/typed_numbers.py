"""The bound of whole numbers typed in a command or an address. Nothing else belongs here."""

from __future__ import annotations

LARGEST = 999_999_999
"""Nine digits: more than rows, seconds or batches need, and less than the limits of databases, clocks and libraries,
which refuse larger integers, each in its own way."""
