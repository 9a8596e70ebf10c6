"""Items of files under their real keys, from their own headers, as the chain would make them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.operators.stac_register import may_register, stac_register
from kfm_dagster.readers.base import READERS
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import CONTRACTS, unit_of


def item_of_file(contracts: ContractRegistry, root: Path, path: str) -> dict[str, Any]:
    """The Item of the file `root/bucket/key`, `path` being the last two."""
    bucket, key = path.split("/", 1)
    contract = contracts.route(bucket=bucket, key=key).contract
    assert contract is not None
    return _item(contracts, extracted(contract.id, root, path))


def _item(contracts: ContractRegistry, envelope: Envelope) -> dict[str, Any]:
    contract, grammar = contracts[envelope.dataset], contracts.grammars[envelope.dataset]
    return dict(stac_register(envelope, contract=contract, grammar=grammar).item)


def items_of_real_objects(contracts: ContractRegistry, objects: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path below the buckets' folder and Item of every real object that a contract takes."""
    for file in sorted(path for path in objects.rglob("*") if path.is_file()):
        path = file.relative_to(objects).as_posix()
        bucket, key = path.split("/", 1)
        route = contracts.route(bucket=bucket, key=key)
        if route.kind is not KeyKind.DATA or route.contract is None:
            continue
        envelope = extracted(route.contract.id, objects, path)
        if may_register(envelope):
            yield path, _item(contracts, envelope)


def extracted(dataset: str, root: Path, path: str) -> Envelope:
    """The envelope of the file `root/bucket/key` as metadata-extract leaves it."""
    bucket, key = path.split("/", 1)
    content = (root / path).read_bytes()
    etag = hashlib.md5(content).hexdigest()
    checked = Integrity(status=CheckStatus.OK, actual_size_bytes=len(content), actual_etag=etag)
    envelope = unit_of(dataset, key, bucket=bucket, object_version=etag, object_size=None, integrity=checked)

    def sidecar(suffix: str) -> BytesSource | None:
        beside = root / (path + suffix)
        return BytesSource(beside.read_bytes()) if beside.is_file() else None

    metadata = metadata_extract(
        envelope,
        contract=CONTRACTS[dataset],
        grammar=CONTRACTS.grammars[dataset],
        source=BytesSource(content),
        open_sidecar=sidecar,
        readers=READERS,
    )
    return envelope.evolve(metadata=metadata)
