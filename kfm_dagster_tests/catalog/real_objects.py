"""Items of files under their real keys, from their own headers, as the chain would make them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity
from kfm_dagster.contracts.identity import wal_id
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.operators.stac_register import may_register, stac_register
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster.readers.registry import READERS


def item_of_file(contracts: ContractRegistry, root: Path, path: str) -> dict[str, Any]:
    """The Item of the file `root/bucket/key`, `path` being the last two."""
    bucket, key = path.split("/", 1)
    contract = contracts.route(bucket=bucket, key=key).contract
    assert contract is not None
    envelope = extracted(contracts, contract.id, root / path, f"s3://{path}")
    return dict(stac_register(envelope, contract=contract, grammar=contracts.grammars[contract.id]).item)


def items_of_real_objects(contracts: ContractRegistry, objects: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path below the buckets' folder and Item of every real object that a contract takes."""
    for file in sorted(path for path in objects.rglob("*") if path.is_file()):
        path = file.relative_to(objects).as_posix()
        bucket, key = path.split("/", 1)
        route = contracts.route(bucket=bucket, key=key)
        if route.kind is not KeyKind.DATA or route.contract is None:
            continue
        envelope = extracted(contracts, route.contract.id, file, f"s3://{path}")
        if may_register(envelope):
            grammar = contracts.grammars[route.contract.id]
            yield path, dict(stac_register(envelope, contract=route.contract, grammar=grammar).item)


def extracted(contracts: ContractRegistry, dataset: str, path: Path, uri: str) -> Envelope:
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
