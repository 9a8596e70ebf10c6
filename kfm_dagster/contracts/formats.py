"""Sources, units and STAC extensions of a reader's fields, from `formats/<reader>.yaml`.

A contract may have entries of its own, such as a source of the names of its dataset's files; these entries come first.
A file in `formats/` whose name begins with `_` has entries that several readers share.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from pydantic import Field

from kfm_dagster.configs import Strict, parse
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.quality import Citation, Quantity, covers
from kfm_dagster.errors import ContractError

_FOLDER = resources.files("kfm_dagster.contracts") / "formats"


class Format(Strict):
    """Sources, units and STAC extensions of a reader's fields, in the order of application."""

    includes: list[str] = Field([], description="Formats whose entries follow the entries of this format.")
    citations: list[Citation] = Field(min_length=1)
    units: list[Quantity] = Field([])
    extensions: list[str] = Field([])

    def gives(self, name: str) -> bool:
        """Return whether the reader can give a property."""
        return any(covers(pattern, name) for citation in self.citations for pattern in citation.fields)


@cache
def readers() -> list[str]:
    """Return the names of all readers, in order."""
    names = (file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))
    return sorted(name for name in names if not name.startswith("_"))


@cache
def format_of(name: str) -> Format:
    """Return a reader's format with the entries of the formats that it includes."""
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    own = parse(text, Format, source=f"contracts/formats/{name}.yaml", error=ContractError)
    parts = [own, *map(format_of, own.includes)]
    return Format(
        citations=[citation for part in parts for citation in part.citations],
        units=[quantity for part in parts for quantity in part.units],
        extensions=[extension for part in parts for extension in part.extensions],
    )


def with_format(contract: DatasetContract) -> DatasetContract:
    """Append sources, units and extensions of the reader's format to the contract's own.

    Raises ContractError for an unknown reader, and for required properties that the reader never gives.
    """
    rules = contract.metadata_extract
    if rules.reader not in readers():
        raise ContractError(
            f"contract {contract.id} names an unknown reader",
            observed=rules.reader,
            expected="one of " + ", ".join(readers()),
            next_step="correct metadata_extract.reader",
        )
    form = format_of(rules.reader)
    if unsupported := [name for name in rules.required if not form.gives(name)]:
        raise ContractError(
            f"contract {contract.id} requires properties that its reader never gives",
            observed=", ".join(unsupported),
            expected=f"properties of the reader {rules.reader} (contracts/formats/{rules.reader}.yaml)",
            next_step="correct metadata_extract.required",
        )
    merged = {"citations": [*rules.citations, *form.citations], "units": [*rules.units, *form.units]}
    extensions = dict.fromkeys([*form.extensions, *contract.stac.extensions])
    sections = {
        "metadata_extract": rules.model_copy(update=merged),
        "stac": contract.stac.model_copy(update={"extensions": list(extensions)}),
    }
    return contract.model_copy(update=sections)
