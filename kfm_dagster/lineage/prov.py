"""PROV-O: a batch of ingests as a JSON-LD document (pure).

Terms are from https://www.w3.org/TR/prov-o/. The context is inline, so a document can be read without the network.
A line has the nodes of a single unit, so that documents can be built, searched and compared unit by unit. A node that
several units share (an object, a message of several records, an agent) has the same id in each line, and the relations
of all lines add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from kfm_dagster import __version__
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.governance.masking import MASKING_DECISION, MaskingDecision
from kfm_dagster.lineage.unit import IngestRun, LineageUnit, agent_id

Node = dict[str, Any]

CONTEXT: Mapping[str, Any] = {
    "prov": "http://www.w3.org/ns/prov#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
    "kfm": "https://kfm.dev/ns/nodd#",
    "urn": "urn:",
    "id": "@id",
    "type": "@type",
    **{kind: f"prov:{kind}" for kind in ("Activity", "Entity", "Agent")},
    **{
        relation: {"@id": f"prov:{relation}", "@type": "@id"}
        for relation in (
            "used", "wasGeneratedBy", "wasInvalidatedBy", "wasDerivedFrom", "wasRevisionOf", "alternateOf",
            "specializationOf", "wasInformedBy", "wasAssociatedWith", "wasAttributedTo", "actedOnBehalfOf",
        )
    },
    "startedAtTime": {"@id": "prov:startedAtTime", "@type": "xsd:dateTime"},
    "endedAtTime": {"@id": "prov:endedAtTime", "@type": "xsd:dateTime"},
    "invalidatedAtTime": {"@id": "prov:invalidatedAtTime", "@type": "xsd:dateTime"},
    "event_time": {"@id": "kfm:event_time", "@type": "xsd:dateTime"},
}  # fmt: skip

SERVICE = agent_id("kfm_dagster")
OPERATOR = agent_id("kfm_dagster.stac_register")
"""The operator that built the Item, on behalf of the service. The software's version is a property of the activity, not
of the agent, so that an upgrade leaves attributions unchanged."""


def prov_document(lines: Iterable[bytes], contract: DatasetContract) -> bytes:
    """Return the JSON-LD document of a batch of `prov_line`s; equal batches give equal bytes."""
    masking = contract.governance.masking
    # If the contract masks all units, its decision is in the document once, under the dataset's public name.
    decision = None if masking is None else MaskingDecision.declared(masking, dataset=contract.public_id)
    return jsonld([joined([*_agents(contract), *(decision.prov_nodes([]) if decision else [])]), *lines])


def jsonld(lines: Iterable[bytes]) -> bytes:
    """Return a document of lines; each line has the JSON of some nodes, separated by commas."""
    return b'{"@context":%b,\n"@graph":[\n%b\n]}\n' % (orjson.dumps(CONTEXT), b",\n".join(lines))


def prov_line(unit: LineageUnit, run: IngestRun, producers: list[str]) -> bytes:
    """Return activity and entities of a unit; `producers` are the agents of the source object."""
    # If the contract masks nothing, a unit whose footprint meets a sensitive area has a decision of its own.
    properties = unit.envelope.metadata.stac_properties if unit.envelope.metadata else {}
    decided = properties.get(MASKING_DECISION)
    masked = [] if decided is None else MaskingDecision.from_json(decided).prov_nodes([unit.masked_id])
    item = _item(unit, run, is_masked=bool(masked))
    return joined([_activity(unit, run), _object(unit, producers), *_messages(unit), _qc_report(unit), *masked, item])


def producer_ids(contract: DatasetContract) -> list[str]:
    """Return the producers of the contract's objects, as PROV agents."""
    return [agent_id(name) for name in _producers(contract)]


def _activity(unit: LineageUnit, run: IngestRun) -> Node:
    envelope = unit.envelope
    node: Node = {
        "id": unit.activity_id,
        "type": ["Activity", "kfm:Ingest"],
        "startedAtTime": run.started_at,
        "endedAtTime": run.occurred_at,
        "used": [entity for entity in (unit.object_id, unit.message_id) if entity],
        "wasAssociatedWith": [SERVICE, OPERATOR],
        "kfm:wal_id": unit.wal_id,
        "kfm:attempt": envelope.attempt,
        "kfm:run_id": run.run_id,
        "kfm:openlineage_run_id": unit.openlineage_run_id,
        "kfm:software_version": __version__,
    }
    if unit.revision:
        node["kfm:revision"] = unit.revision
    if envelope.replay_run_id is not None:
        node["kfm:replay_run_id"] = envelope.replay_run_id
        if envelope.replay_reason is not None:
            node["kfm:replayReason"] = envelope.replay_reason
    return node


def _object(unit: LineageUnit, producers: list[str]) -> Node:
    node: Node = {
        "id": unit.object_id,
        "type": ["Entity", "kfm:SourceObject"],
        "kfm:object_uri": unit.envelope.object_uri,
        "event_time": rfc3339(unit.envelope.event_time),
        "wasAttributedTo": producers,
    }
    if unit.envelope.object_version is not None:
        node["kfm:object_version"] = unit.envelope.object_version
    return node


def _messages(unit: LineageUnit) -> Iterator[Node]:
    raw = unit.envelope.raw
    announced = unit.object_id
    if unit.notification_id:
        node: Node = {
            "id": unit.notification_id,
            "type": ["Entity", "kfm:Notification"],
            "kfm:sns_message_id": raw.sns_message_id,
            "wasDerivedFrom": announced,
        }
        if raw.topic_arn:
            node["kfm:topic_arn"] = raw.topic_arn
        yield node
        announced = unit.notification_id
    if unit.message_id:
        yield {
            "id": unit.message_id,
            "type": ["Entity", "kfm:Message"],
            "kfm:sqs_message_id": raw.sqs_message_id,
            "wasDerivedFrom": announced,
        }


def _qc_report(unit: LineageUnit) -> Node:
    integrity, metadata = unit.envelope.integrity, unit.envelope.metadata
    node: Node = {
        "id": unit.qc_report_id,
        "type": ["Entity", "kfm:QcReport"],
        "kfm:integrity_status": integrity.status if integrity else "unknown",
        "kfm:metadata_status": metadata.status if metadata else "unknown",
        "wasGeneratedBy": unit.activity_id,
        "wasDerivedFrom": unit.object_id,
        "wasAttributedTo": SERVICE,
    }
    sections = [section for section in (integrity, metadata) if section is not None]
    if codes := sorted({issue.code for section in sections for issue in section.issues}):
        node["kfm:issue"] = codes
    return node


def _item(unit: LineageUnit, run: IngestRun, *, is_masked: bool) -> Node:
    stac = unit.stac
    node: Node = {
        "id": unit.item_id,
        "type": ["Entity", "kfm:StacItem"],
        "kfm:stac_item_id": stac.item_id,
        "kfm:stac_collection_id": stac.collection_id,
        "kfm:dataset_id": f"{run.dataset}.stac_register",
        "wasDerivedFrom": [unit.object_id, unit.qc_report_id, *([unit.masked_id] if is_masked else [])],
        "wasAttributedTo": OPERATOR,
    }
    if stac.superseded:
        # The Item never became current, so no activity generated it. Nor did the newer unit's activity invalidate
        # it, because that activity ended earlier (PROV-CONSTRAINTS: generation precedes invalidation). The current
        # Item is another aspect of the same thing, an alternate (PROV-DM, 5.5.2).
        node["kfm:superseded"] = True
        if unit.yields_to is not None:
            node["alternateOf"] = unit.yields_to
        return node
    node["wasGeneratedBy"] = unit.activity_id
    node["kfm:stac_item_href"] = stac.item_href
    if stac.content_sha256 is not None:
        node["kfm:content_sha256"] = stac.content_sha256
    if unit.revises is not None:
        # Also stated as a derivation, because readers do not infer a derivation from its subproperty.
        node["wasRevisionOf"] = unit.revises
        node["wasDerivedFrom"] = [*node["wasDerivedFrom"], unit.revises]
    return node


def software_agent(name: str, **relations: str) -> Node:
    """Return the agent of a piece of software."""
    # Also typed as Agent, because RDF readers do not infer this type from the subclass.
    return {"id": agent_id(name), "type": ["Agent", "prov:SoftwareAgent"], "kfm:name": name, **relations}


def _agents(contract: DatasetContract) -> Iterator[Node]:
    yield software_agent("kfm_dagster")
    yield software_agent("kfm_dagster.stac_register", actedOnBehalfOf=SERVICE)
    for name in _producers(contract):
        yield {"id": agent_id(name), "type": ["Agent", "prov:Organization"], "kfm:name": name}


def _producers(contract: DatasetContract) -> list[str]:
    return [provider.name for provider in contract.stac.providers if "producer" in provider.roles]


def joined(nodes: Iterable[Node]) -> bytes:
    """Return nodes as JSON, separated by commas."""
    return b",".join(orjson.dumps(node) for node in nodes)
