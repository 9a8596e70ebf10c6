"""Packages of the extra `read`, imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kfm_dagster.errors import DependencyUnavailableError


def package(name: str, *, extra: str = "read") -> Any:
    """Import a package of an extra. Raises DependencyUnavailableError if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DependencyUnavailableError(
            f"{error.name} is not installed", next_step=f"pip install 'kfm-dagster[{extra}]'"
        ) from None
