"""Which Items go together in a virtual store, as contracts say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kfm_dagster.contracts.key_grammar import KeyGrammarReader
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.virtual import VirtualStore

STORE: dict[str, Any] = {"match": {"product": "ABI-L1b-RadM"}, "name": "G{satellite}_{name}", "along": "t"}


def name_of(contract: DatasetContract, file: str) -> str | None:
    product = file.partition("-M6")[0].removeprefix("OR_").rstrip("12")
    hour = file.partition("_s2025152")[2][:2]
    match = KeyGrammarReader(contract).match(f"{product}/2025/152/{hour}/{file}")
    assert match is not None
    names = (store.store_of(match.groups, match.start.hour) for store in contract.virtual)
    return next((name for name in names if name is not None), None)


def test_a_product_a_band_and_a_sector_go_together(contracts: ContractRegistry) -> None:
    for product, hour, name in [
        ("ABI-L1b-RadM1-M6C13", "23", "G19_ABI-L1b-RadM1_C13"),
        ("ABI-L1b-RadM2-M6C02", "00", "G19_ABI-L1b-RadM2_C02"),
        ("ABI-L1b-RadC-M6C13", "05", "G19_ABI-L1b-RadC_C13_00h"),
        ("ABI-L1b-RadC-M6C13", "06", "G19_ABI-L1b-RadC_C13_06h"),
        ("ABI-L2-MCMIPM1-M6", "06", "G19_ABI-L2-MCMIPM1"),
        ("ABI-L2-CMIPF-M6C07", "23", "G19_ABI-L2-CMIPF_C07_23h"),
        # Finer than 2 km.
        ("ABI-L2-CMIPF-M6C02", "23", None),
        ("ABI-L2-CMIPF-M6C05", "23", None),
        ("ABI-L2-MCMIPF-M6", "12", "G19_ABI-L2-MCMIPF_12h"),
        ("ABI-L2-LSTC-M6", "12", "G19_ABI-L2-LSTC"),
        # Points, and a grid of degrees.
        ("ABI-L2-DMWF-M6C07", "12", None),
        ("ABI-L2-DSRF-M6", "12", None),
    ]:
        stamps = f"G19_s2025152{hour}00000_e2025152{hour}00059_c2025152{hour}00099"
        assert name_of(contracts["goes-abi"], f"OR_{product}_{stamps}.nc") == name


def test_what_makes_no_name_is_refused() -> None:
    for wrong, why in [
        ({"name": "../{name}"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"along": "a b"}, "along"),
        ({"hours": 5}, "hours"),
        ({"match": {"product": "("}}, "not a regular expression"),
        ({"other": 1}, "other"),
    ]:
        with pytest.raises(ValidationError, match=why):
            VirtualStore.model_validate({**STORE, **wrong})


def test_a_name_that_is_no_file_name_is_none() -> None:
    store = VirtualStore.model_validate({**STORE, "match": {}, "name": "{name}"})
    assert store.store_of({"name": "ABI.1"}, 0) == "ABI.1"
    for bad in ("..", "a/b", "a b", "", "é", "a" * 101):
        assert store.store_of({"name": bad}, 0) is None


def contract_with(contract: DatasetContract, **changes: Any) -> DatasetContract:
    return DatasetContract.model_validate({**contract.model_dump(exclude_unset=True), **changes})


def test_a_group_that_no_key_has_and_objects_that_not_everybody_reads_are_refused(contracts: ContractRegistry) -> None:
    contract = contracts["goes-abi"]
    with pytest.raises(ValidationError, match="virtual \\['channels'\\]"):
        contract_with(contract, virtual=[{**STORE, "name": "{channels}"}])
    governance = {**contract.governance.model_dump(exclude_unset=True), "access": "restricted"}
    with pytest.raises(ValidationError, match="anyone may read"):
        contract_with(contract, governance=governance)
    assert contract_with(contract, governance=governance, virtual=[]).governance.access == "restricted"


def test_stores_of_grib2_say_which_fields_and_others_do_not(contracts: ContractRegistry) -> None:
    rule = {"match": {"product": "sfc"}, "name": "{product}_{cycle}", "along": "valid_time"}
    assert contract_with(contracts["hrrr"], virtual=[{**rule, "fields": ["TMP .*"]}]).virtual[0].fields == ["TMP .*"]
    for contract, given in ((contracts["hrrr"], rule), (contracts["goes-abi"], {**STORE, "fields": ["TMP .*"]})):
        with pytest.raises(ValidationError, match=r"virtual\.fields are those of GRIB2"):
            contract_with(contract, virtual=[given])
    with pytest.raises(ValidationError, match="not a regular expression"):
        contract_with(contracts["hrrr"], virtual=[{**rule, "fields": ["TMP ("]}])
