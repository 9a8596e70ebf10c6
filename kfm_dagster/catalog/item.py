"""Build a STAC 1.1.0 Item, its canonical bytes and its content hash from an envelope.

Pure. Does not belong here: validation (`validation.py`), files (`publisher.py`), assets (`assets.py`), current Items.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from kfm_dagster.catalog.assets import EXTENSIONS, assets, storage_schemes
from kfm_dagster.catalog.layout import item_links
from kfm_dagster.contracts.envelope import CLOSED, CheckStatus, Envelope, WalId
from kfm_dagster.contracts.issues import Issue
from kfm_dagster.contracts.key_grammar import KeyMatch
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.stewardship import Governance

STAC_VERSION = "1.1.0"
ISSUE_TEXT_LIMIT = 300
"""Maximum characters of an issue's message in an Item."""

_EXTENSION_NAME = re.compile(r"/([a-z0-9-]+)/v[0-9][^/]*/schema\.json$")
_PREFIXES = {"projection": "proj", "alternate-assets": "alternate", "xarray-assets": "xarray", "datacube": "cube"}
"""Field prefixes of the extensions whose prefix differs from their name."""
_VOLATILE_PROPERTIES = frozenset({"kfm:run_state", "created", "updated"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An Item to be registered in the catalog.

    `content` is the canonical JSON to write. Only `bbox` and `properties` (without JSON objects) are parsed, because a
    batch of parsed Items would take ten times the memory. `precedence` and `sequencer` (each can be empty) and
    `event_time` give the order of re-issued objects. The fence needs `attempt`, the attempt of the unit's claim; the
    undo log needs `run_id` (None outside a run).
    """

    dataset: str
    collection_id: str
    item_id: str
    partition: str
    content: bytes
    content_sha256: str
    bbox: Sequence[float] | None
    properties: Mapping[str, Any]
    object_uri: str
    wal_id: WalId
    attempt: int
    run_id: str | None
    precedence: str
    sequencer: str
    event_time: datetime

    @property
    def item(self) -> Mapping[str, Any]:
        """The content, parsed at each use."""
        parsed: dict[str, Any] = orjson.loads(self.content)
        return parsed


class NoItemError(Exception):
    """The key gives no Item id, or a database cannot store the Item's JSON."""


def build_candidate(
    envelope: Envelope, *, contract: DatasetContract, match: KeyMatch, run_state: Mapping[str, str] | None
) -> Candidate:
    """Build an Item with its canonical bytes. Raises NoItemError."""
    item = build_item(envelope, contract=contract, match=match, run_state=run_state)
    try:
        content = canonical(item)
        digest = content_sha256(item)
    except TypeError as error:
        raise NoItemError(f"the Item has no JSON form: {error}") from None
    if b"\\u0000" in content:
        raise NoItemError("the Item holds a NUL character, which PostgreSQL does not keep")
    parsed = orjson.loads(content)
    return Candidate(
        dataset=contract.id,
        collection_id=contract.stac.collection,
        item_id=match.item_id,
        partition=envelope.partition,
        content=content,
        content_sha256=digest,
        bbox=parsed.get("bbox"),
        properties={name: value for name, value in parsed["properties"].items() if not isinstance(value, dict)},
        object_uri=envelope.object_uri,
        wal_id=envelope.wal_id,
        attempt=envelope.attempt,
        run_id=run_state["run_id"] if run_state else None,
        precedence=match.precedence + (CLOSED if envelope.is_closing else ""),
        sequencer=envelope.sequencer or "",
        event_time=envelope.event_time,
    )


def build_item(
    envelope: Envelope, *, contract: DatasetContract, match: KeyMatch, run_state: Mapping[str, str] | None
) -> dict[str, Any]:
    """Build the STAC Item of an envelope that has its `metadata` section.

    `run_state` is {dataset_id, run_id} of the registering node; by this, readers of an Item find its run.
    """
    metadata = envelope.metadata
    if metadata is None:
        raise ValueError(f"{envelope.wal_id} has no metadata section, so there is no Item to build")
    item: dict[str, Any] = {
        "type": "Feature",
        "stac_version": STAC_VERSION,
        "id": match.item_id,
        "collection": contract.stac.collection,
        "geometry": metadata.geometry,
        "properties": _properties(envelope, metadata.stac_properties, contract, run_state),
        "links": item_links(),
        "assets": assets(envelope, contract=contract, metadata=metadata, groups=match.groups),
    }
    if metadata.geometry is not None and metadata.bbox is not None:
        item["bbox"] = list(metadata.bbox)
    item["stac_extensions"] = used_extensions(contract, _field_names(item))
    return item


def canonical(value: Mapping[str, Any]) -> bytes:
    """Return canonical JSON: sorted keys, no white space, UTF-8. Raises TypeError if impossible."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def content_sha256(item: Mapping[str, Any]) -> str:
    """Return the hex SHA-256 of an Item without links and without members that differ by run."""
    properties = {name: value for name, value in item["properties"].items() if name not in _VOLATILE_PROPERTIES}
    stable = {name: value for name, value in item.items() if name != "links"}
    return hashlib.sha256(canonical({**stable, "properties": properties})).hexdigest()


def content_of(file: bytes | None) -> str | None:
    """Return the content hash of a catalog's file; None if the file is missing or not an Item."""
    try:
        return None if file is None else content_sha256(orjson.loads(file))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def used_extensions(contract: DatasetContract, names: Iterator[str]) -> list[str]:
    """Return the extensions, of contract and assets, that define at least one of these fields."""
    used = {name.split(":", 1)[0] for name in names if ":" in name}
    return [uri for uri in (*contract.stac.extensions, *EXTENSIONS) if _prefix(uri) in used]


def _prefix(uri: str) -> str:
    match = _EXTENSION_NAME.search(uri)
    name = match[1] if match else uri
    return _PREFIXES.get(name, name)


def _field_names(item: Mapping[str, Any]) -> Iterator[str]:
    for fields in (item["properties"], *item["assets"].values()):
        yield from fields
        bands = fields.get("bands", ())
        for band in bands if isinstance(bands, list | tuple) else ():
            yield from band


def _properties(
    envelope: Envelope, extracted: Mapping[str, Any], contract: DatasetContract, run_state: Mapping[str, str] | None
) -> dict[str, Any]:
    properties: dict[str, Any] = {
        # STAC 1.1 has an Item's bands on its assets (item.json, "Rules enforcement for STAC Item").
        **{name: value for name, value in extracted.items() if name != "bands"},
        "kfm:wal_id": envelope.wal_id,
        "kfm:dataset": contract.public_id,
        "kfm:integrity": (envelope.integrity.status if envelope.integrity else CheckStatus.UNKNOWN).value,
        **item_notice(contract.governance),
    }
    sections = (("integrity_check", envelope.integrity), ("metadata_extract", envelope.metadata))
    issues = [_issue(operator, issue) for operator, section in sections if section for issue in section.issues]
    if issues:
        properties["kfm:issues"] = issues
    if schemes := storage_schemes(envelope, contract):
        properties["storage:schemes"] = schemes
    if run_state is not None:
        operator = run_state["dataset_id"].rpartition(".")[2]
        properties["kfm:run_state"] = {**run_state, "dataset_id": f"{contract.public_id}.{operator}"}
    return properties


def item_notice(governance: Governance) -> dict[str, str]:
    """Return the properties that governance adds to a dataset's Items; none for an open dataset."""
    notice: dict[str, str] = {}
    if governance.sensitivity != "none":
        notice["kfm:sensitivity"] = governance.sensitivity
    if governance.access != "open":
        notice["kfm:access"] = governance.access
    if governance.masking is not None:
        notice["kfm:masking"] = str(governance.masking)
    return notice


def _issue(operator: str, issue: Issue) -> dict[str, str]:
    return {
        "operator": operator,
        "code": str(issue.code),
        "severity": issue.severity.value,
        "message": issue.message[:ISSUE_TEXT_LIMIT],
    }
