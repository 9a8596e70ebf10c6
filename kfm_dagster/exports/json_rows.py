"""Rows and values as JSON values: times as RFC 3339 texts. Nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from kfm_dagster.contracts.identity import rfc3339


def json_row(row: Mapping[str, Any] | Any) -> dict[str, Any]:
    """Return a mapping or a dataclass with JSON values, its own kind of text for each enum."""
    values = row if isinstance(row, Mapping) else asdict(row)
    return {name: rfc3339(value) if isinstance(value, datetime) else value for name, value in values.items()}
