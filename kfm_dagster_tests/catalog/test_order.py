"""The order of re-issues of an object by S3's sequencers."""

from __future__ import annotations

import pytest

from kfm_dagster.catalog.outcomes import is_older, select_latest
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster_tests.catalog.envelopes import candidates, goes


@pytest.mark.clause("BEY-01")
def test_sequencers_are_padded_on_the_right(contracts: ContractRegistry) -> None:
    for sequencer, other, older in [
        ("0A", "0B", True),
        ("0B", "0A", False),
        ("0A", "0A", False),
        # Padded with zeros on the right these are equal; unpadded, the shorter one would sort first.
        ("0A", "0A00", False),
        ("0A00", "0A", False),
        ("0A", "0A01", True),
        # Padded on the left, the longer one would always be newer.
        ("0B", "0A01", False),
        ("0A01", "0B", True),
    ]:
        assert is_older(*candidates(contracts, [goes(sequencer=sequencer), goes(sequencer=other)])) is older


def test_of_two_versions_without_an_order_the_last_of_the_batch_is_kept(contracts: ContractRegistry) -> None:
    first, last = candidates(contracts, [goes(version=digit * 32) for digit in "12"])
    assert select_latest([first, last]) == {last.item_id: last}
