"""The readers by their names in contracts.

Belongs here: names, and the refusal of a contract with an unknown name. Does not belong here: formats. A format's
libraries (h5py, pyproj) are imported with its first object, so that commands that read no object start fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType, ModuleType

from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ContractError
from kfm_dagster.readers.base import TIMES, HeaderMetadata, ReadRequest


@dataclass(frozen=True, slots=True)
class LazyReader:
    """A reader, `goes-abi` for `read_goes_abi` of `goes_abi.py`, imported on its first call."""

    name: str

    @property
    def module(self) -> ModuleType:
        """Import the reader's module; Python keeps it, so later calls cost a dictionary look-up."""
        return import_module(f"kfm_dagster.readers.{self.name.replace('-', '_')}")

    def gives(self, name: str) -> bool:
        """Return whether the module's PROPERTIES have the STAC property, with `*` for any prefix."""
        properties: frozenset[str] = self.module.PROPERTIES | TIMES
        return not properties.isdisjoint({name, "*:" + name.partition(":")[2]})

    @property
    def first_bytes(self) -> int:
        """How many bytes of an object its first request is for: the module's FIRST_BYTES."""
        return int(self.module.FIRST_BYTES)

    def __call__(self, request: ReadRequest, /) -> HeaderMetadata:
        """Read the headers. Raises ReadError."""
        header: HeaderMetadata = getattr(self.module, f"read_{self.name.replace('-', '_')}")(request)
        return header


READERS: Mapping[str, LazyReader] = MappingProxyType({
    name: LazyReader(name)
    for name in (
        "goes-abi", "goes-glm", "nexrad-level2", "nexrad-level3", "nexrad-chunk", "grib2", "grib2-gzip", "isd",
        "netcdf-grid",
    )
})  # fmt: skip


def refuse_orphans(contracts: Iterable[DatasetContract]) -> None:
    """Raise ContractError for an unknown reader, and for properties that its reader never gives."""
    for contract in contracts:
        rules = contract.metadata_extract
        if rules.reader not in READERS:
            raise ContractError(
                f"contract {contract.id} names a reader that there is not",
                observed=rules.reader,
                expected="one of " + ", ".join(READERS),
                next_step="correct metadata_extract.reader",
            )
        if unsupported := [name for name in rules.required if not READERS[rules.reader].gives(name)]:
            raise ContractError(
                f"contract {contract.id} requires properties that its reader never gives",
                observed=", ".join(unsupported),
                expected=f"properties of the reader {rules.reader}",
                next_step="correct metadata_extract.required",
            )
