"""Ingest NOAA open data (NODD) into a STAC catalog with provenance, each effect once.

    import kfm_dagster as kfm

    kfm.open("hrrr", field="TMP:2 m above ground")

`search`, `open`, `latest`, `best`, `stores`, `unchanged` and `zarr_store` are functions of `kfm_dagster.reading`. Each
is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfm_dagster.reading.fields import best
    from kfm_dagster.reading.fields import open_source as open  # noqa: A004, the function that opens
    from kfm_dagster.reading.items import latest, search
    from kfm_dagster.reading.stores import stores, unchanged, zarr_store

__version__ = "0.1.0"
__all__ = ["best", "latest", "open", "search", "stores", "unchanged", "zarr_store"]

_READING = {
    "best": "fields:best",
    "latest": "items:latest",
    "open": "fields:open_source",
    "search": "items:search",
    "stores": "stores:stores",
    "unchanged": "stores:unchanged",
    "zarr_store": "stores:zarr_store",
}


def __getattr__(name: str) -> Any:
    """Import a function of `kfm_dagster.reading` when it is used."""
    if name not in _READING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, function = _READING[name].partition(":")
    return getattr(import_module(f"kfm_dagster.reading.{module}"), function)
