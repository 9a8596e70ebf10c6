"""The bound of whole numbers typed in a command or an address. Nothing else belongs here."""

from __future__ import annotations

LARGEST = 999_999_999
"""Nine digits: more than rows, seconds or batches need. Databases, clocks and libraries have higher limits, but each
refuses an integer above its limit in its own way."""
