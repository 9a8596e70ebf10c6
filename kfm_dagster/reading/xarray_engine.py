"""The engine `kfm` of xarray: opens a virtual store by the address of its references.

Assets name the engine for xpystac. xarray imports every engine to guess which of them opens a file, so this module
imports only xarray until a store is opened.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override
from xarray import Dataset
from xarray.backends import BackendEntrypoint


class VirtualStores(BackendEntrypoint):
    """Opens references; an object that was written again raises ObjectReadError when it is read."""

    description = "Virtual Zarr stores of kfm_dagster"
    open_dataset_parameters = ("filename_or_obj", "drop_variables")

    @override
    def open_dataset(self, filename_or_obj: Any, *, drop_variables: Any = None, **options: Any) -> Dataset:
        """Open the store; `options` are those of zarr's engine."""
        from kfm_dagster.reading.stores import open_store  # noqa: PLC0415, as above

        opened: Dataset = open_store(str(filename_or_obj), drop_variables=drop_variables, **options)
        return opened
