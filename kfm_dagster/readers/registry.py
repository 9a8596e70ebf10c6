"""The readers by the name that contracts give them.

Belongs here: names, and the refusal of a contract that names none. Does not belong here: formats. A format's libraries
(h5py, pyproj) are imported at the first object of it, so that commands that read no object start fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ContractError
from kfm_dagster.readers.base import TIMES, HeaderMetadata, Reader, ReadRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class LazyReader:
    """A reader that is imported when it is first called."""

    module: str
    function: str

    def load(self) -> Reader:
        """Import the reader's module; Python keeps it, so later calls cost a dictionary look-up."""
        reader: Reader = getattr(import_module(self.module), self.function)
        return reader

    def gives(self, name: str) -> bool:
        """Tell whether an object can have the STAC property: the module's PROPERTIES name it, `*` for any prefix."""
        given: frozenset[str] = import_module(self.module).PROPERTIES | TIMES
        return not given.isdisjoint({name, "*:" + name.partition(":")[2]})

    @property
    def first_bytes(self) -> int:
        """How many bytes of an object its first request is for: the module's FIRST_BYTES."""
        return int(import_module(self.module).FIRST_BYTES)

    def __call__(self, request: ReadRequest, /) -> HeaderMetadata:
        """Read the headers. Raises ReadError."""
        return self.load()(request)


READERS: Mapping[str, LazyReader] = MappingProxyType(
    {
        "goes-abi": LazyReader(module="kfm_dagster.readers.goes_abi", function="read_goes_abi"),
        "goes-glm": LazyReader(module="kfm_dagster.readers.goes_glm", function="read_goes_glm"),
        "nexrad-level2": LazyReader(module="kfm_dagster.readers.nexrad_level2", function="read_nexrad_level2"),
        "nexrad-level3": LazyReader(module="kfm_dagster.readers.nexrad_level3", function="read_nexrad_level3"),
        "nexrad-chunk": LazyReader(module="kfm_dagster.readers.nexrad_chunk", function="read_nexrad_chunk"),
        "grib2": LazyReader(module="kfm_dagster.readers.grib2", function="read_grib2"),
        "grib2-gzip": LazyReader(module="kfm_dagster.readers.grib2_gzip", function="read_grib2_gzip"),
        "isd": LazyReader(module="kfm_dagster.readers.isd", function="read_isd"),
        "netcdf-grid": LazyReader(module="kfm_dagster.readers.netcdf_grid", function="read_netcdf_grid"),
    }
)


def refuse_orphans(contracts: Iterable[DatasetContract]) -> None:
    """Refuse contracts whose objects no reader can read as they ask. Raises ContractError."""
    for contract in contracts:
        rules = contract.metadata_extract
        if rules.reader not in READERS:
            raise ContractError(
                f"contract {contract.id} names a reader that there is not",
                observed=rules.reader,
                expected="one of " + ", ".join(READERS),
                next_step="correct metadata_extract.reader",
            )
        if never := [name for name in rules.required if not READERS[rules.reader].gives(name)]:
            raise ContractError(
                f"contract {contract.id} requires properties that its reader never gives",
                observed=", ".join(never),
                expected=f"properties of the reader {rules.reader}",
                next_step="correct metadata_extract.required",
            )
