"""inputs_hash: a golden vector, and the changes that do and do not affect the hash."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.run_state.record import InputReference, inputs_hash

pytestmark = pytest.mark.clause("RSP-02")

_TEXT = st.text(max_size=8)
_REFERENCES = st.lists(
    st.builds(
        InputReference,
        uri=_TEXT,
        checksum=st.none() | _TEXT,
        etag=st.none() | _TEXT,
        last_modified=st.none() | _TEXT,
        query=st.dictionaries(_TEXT, _TEXT, max_size=2),
        window=st.none() | st.tuples(_TEXT, _TEXT),
    ),
    max_size=4,
)
_PARAMETERS = st.dictionaries(_TEXT, st.integers() | _TEXT | st.booleans() | st.none(), max_size=3)


def test_golden_vector() -> None:
    computed = inputs_hash(
        [
            InputReference(uri="s3://b/z", checksum="sha256:02"),
            InputReference(uri="s3://b/a", checksum="sha256:01", window=("2025-01-01", "2025-01-02")),
        ],
        {"model": "hrrr", "aoi": [1, 2.5], "Ä": None},
    )
    by_hand = (
        '{"inputs":[{"checksum":"sha256:01","uri":"s3://b/a","window":["2025-01-01","2025-01-02"]},'
        '{"checksum":"sha256:02","uri":"s3://b/z"}],"parameters":{"aoi":[1,2.5],"model":"hrrr","Ä":null}}'
    )
    assert computed == "sha256:" + hashlib.sha256(by_hand.encode()).hexdigest()
    assert computed == "sha256:6104e702a09cb6650ff2185d5ba576c27d339875fac67f989ae807d226c51be7"


@given(references=_REFERENCES, parameters=_PARAMETERS, seed=st.integers())
def test_order_does_not_matter(references: list[InputReference], parameters: dict[str, Any], seed: int) -> None:
    shuffled, reordered = list(references), list(parameters.items())
    random.Random(seed).shuffle(shuffled)
    random.Random(seed).shuffle(reordered)
    assert inputs_hash(references, parameters) == inputs_hash(shuffled, dict(reordered))


@given(first=st.tuples(_REFERENCES, _PARAMETERS), second=st.tuples(_REFERENCES, _PARAMETERS))
def test_different_inputs_give_different_hashes(first: Any, second: Any) -> None:
    def key(pair: Any) -> Any:
        def typed(value: Any) -> Any:
            return (type(value).__name__, value)

        references = sorted(repr(sorted((k, repr(v)) for k, v in r.canonical().items())) for r in pair[0])
        return references, sorted((name, typed(value)) for name, value in pair[1].items())

    assert (inputs_hash(*first) == inputs_hash(*second)) == (key(first) == key(second))


def test_every_member_of_an_input_reference_changes_the_hash() -> None:
    for member in ["uri", "checksum", "etag", "last_modified", "query", "window"]:
        base: dict[str, Any] = {
            "uri": "s3://b/k", "checksum": "c", "etag": "e", "last_modified": "l", "query": {"q": "1"},
            "window": ("a", "b"),
        }  # fmt: skip
        changed = base | {member: {"q": "2"} if member == "query" else ("a", "c") if member == "window" else "other"}
        assert inputs_hash([InputReference(**base)], {}) != inputs_hash([InputReference(**changed)], {})
