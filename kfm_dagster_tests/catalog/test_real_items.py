"""Items of real NODD objects, from their own headers, against core, profile and official extension schemas."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity
from kfm_dagster.contracts.identity import wal_id
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.operators.stac_register import may_register, stac_register
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster.readers.registry import READERS
from kfm_dagster_tests.catalog.official import OfficialSchemas


@pytest.mark.clause("OPR-08")
def test_items_of_real_objects_are_valid(contracts: ContractRegistry, shared_data: Path) -> None:
    official = OfficialSchemas(shared_data / "schemas/stac-extensions")
    seen: set[str] = set()
    for path in sorted(path for path in (shared_data / "objects").rglob("*") if path.is_file()):
        bucket, key = path.relative_to(shared_data / "objects").as_posix().split("/", 1)
        route = contracts.route(bucket=bucket, key=key)
        if route.kind is not KeyKind.DATA or route.contract is None:
            continue
        envelope = _extracted(contracts, route.contract.id, path, f"s3://{bucket}/{key}")
        if not may_register(envelope):
            continue
        candidate = stac_register(envelope, contract=route.contract, grammar=contracts.grammars[route.contract.id])
        assert validate_item(candidate.item) == [], path
        assert official.errors(candidate.item) == [], path
        seen.add(route.contract.id)
    assert {"goes-abi", "hrrr", "nexrad-l2"} <= seen


def _extracted(contracts: ContractRegistry, dataset: str, path: Path, uri: str) -> Envelope:
    """The envelope of an object as metadata-extract leaves it."""
    grammar = contracts.grammars[dataset]
    match = grammar.match(uri.split("/", 3)[3])
    assert match is not None
    content = path.read_bytes()
    etag = hashlib.md5(content).hexdigest()
    envelope = Envelope(
        wal_id=wal_id(dataset=dataset, object_uri=uri, time_range_start=match.start, object_version=etag),
        dataset=dataset,
        object_uri=uri,
        provider="aws",
        queue="kfm-nodd-primary",
        event_time=match.end,
        time_range_start=match.start,
        time_range_end=match.end,
        schema_version="2.1",
        integrity=Integrity(status=CheckStatus.OK, actual_size_bytes=len(content), actual_etag=etag),
    )

    def sidecar(suffix: str) -> BytesSource | None:
        beside = path.with_name(path.name + suffix)
        return BytesSource(beside.read_bytes()) if beside.is_file() else None

    metadata = metadata_extract(
        envelope,
        contract=contracts[dataset],
        grammar=grammar,
        source=BytesSource(content),
        open_sidecar=sidecar,
        readers=READERS,
    )
    return envelope.evolve(metadata=metadata)
