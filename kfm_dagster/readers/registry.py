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
from kfm_dagster.readers.base import HeaderMetadata, Reader, ReadRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class LazyReader:
    """A reader that is imported when it is first called."""

    module: str
    function: str

    def load(self) -> Reader:
        """Import the reader's module; Python keeps it, so later calls cost a dictionary look-up."""
        reader: Reader = getattr(import_module(self.module), self.function)
        return reader

    def __call__(self, request: ReadRequest, /) -> HeaderMetadata:
        """Read the headers. Raises ReadError."""
        return self.load()(request)


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "goes-abi": LazyReader(module="kfm_dagster.readers.goes_abi", function="read_goes_abi"),
        "nexrad-level2": LazyReader(module="kfm_dagster.readers.nexrad_level2", function="read_nexrad_level2"),
        "grib2": LazyReader(module="kfm_dagster.readers.grib2", function="read_grib2"),
    }
)


def refuse_orphans(contracts: Iterable[DatasetContract]) -> None:
    """Refuse contracts whose objects no reader can read. Raises ContractError."""
    for contract in contracts:
        if contract.metadata_extract.reader not in READERS:
            raise ContractError(
                f"contract {contract.id} names a reader that there is not",
                observed=contract.metadata_extract.reader,
                expected="one of " + ", ".join(READERS),
                next_step="correct metadata_extract.reader",
            )
