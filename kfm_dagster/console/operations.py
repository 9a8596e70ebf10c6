"""Operations of the JSON API and of assistants: views, and queries on a unit or deployment.

Each operation is bounded and only reads. A wrong parameter raises BadFilterError or BadRequestError, an unknown dataset
ContractError. Does not belong here: HTTP (`app.py`), the protocol of assistants (`mcp_server.py`), queries (`views/`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

from kfm_dagster import __version__
from kfm_dagster.catalog.layout import GEOJSON, link
from kfm_dagster.errors import UnknownNameError
from kfm_dagster.exports.deployment_status import DeploymentStatus, deployment_status
from kfm_dagster.exports.explanations.unit_history import unit_history
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.storage.publisher import open_publisher
from kfm_dagster.views.decisions import ALERTS
from kfm_dagster.views.feeds import DATASETS, GAPS, REJECTIONS
from kfm_dagster.views.units import FAILURES, UNITS, record_of
from kfm_dagster.views.view import BASE, View, json_row

JSON = "application/json"
_REFERENCE = "#/components/schemas/{model}"
_REFUSALS = {
    "400": "A parameter or its value is unknown.",
    "404": "The unit or the dataset is unknown.",
    "503": "The database or a store does not answer.",
}


class Record(NoddWalRecord):
    """One unit with its whole history, as `kfm units show --json` prints it."""

    issues: list[dict[str, Any]]
    versions: list[dict[str, Any]]
    lease: list[dict[str, Any]]
    cases: list[dict[str, Any]]
    governance: list[dict[str, Any]]
    history: list[dict[str, Any]]


class Problem(BaseModel):
    """A refusal (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """A query that returns a single `row`: a GET of `path` below BASE, or an assistants' `tool`."""

    operation: str
    summary: str
    answer: Callable[[Pipeline, Mapping[str, str]], dict[str, Any]]
    row: Any
    path: str | None = None
    tool: str | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _unit(pipeline: Pipeline, arguments: Mapping[str, str]) -> dict[str, Any]:
    with pipeline.database.snapshot() as view:
        record = record_of(pipeline.ledger, arguments.get("wal_id", ""), tx=view)
    return record.model_dump(mode="json") | json_row(unit_history(pipeline, record))


def item(pipeline: Pipeline, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Return a unit's Item with its address as the link `self`, or raise UnknownNameError."""
    with pipeline.database.snapshot() as view:
        href = record_of(pipeline.ledger, arguments.get("wal_id", ""), tx=view).stac_item_href
    address = pipeline.settings.catalog_public_url or pipeline.settings.catalog
    content = open_publisher(pipeline.settings.catalog).read([href]).get(href) if href else None
    if content is None:
        raise UnknownNameError("the unit has no Item in the catalog", observed=arguments["wal_id"])
    document: dict[str, Any] = json.loads(content)
    return document | {"links": [*document["links"], link("self", f"{address}/{href}", media_type=GEOJSON)]}


_WAL_ID = {"wal_id": {"type": "string", "format": "uuid", "description": "Id of the unit, a UUID."}}
OPERATIONS: Sequence[View | Operation] = (
    *(UNITS, FAILURES, GAPS, REJECTIONS, ALERTS, DATASETS),
    Operation(
        operation="explainUnit",
        summary="One unit: record, issues, versions, lease, quarantine cases, decisions and every change.",
        answer=_unit,
        row=Record,
        path="/units/{wal_id}",
        tool="explain_unit",
        parameters=_WAL_ID,
    ),
    Operation(
        operation="getItem",
        summary="A unit's STAC Item in the catalog; `kfm_dagster.open` opens the address of its link `self` in xarray.",
        answer=item,
        row=dict[str, Any],
        tool="item",
        parameters=_WAL_ID,
    ),
    Operation(
        operation="getStatus",
        summary="Matters that need attention, with the command that helps, and units by dataset and status.",
        answer=lambda pipeline, _: json_row(deployment_status(pipeline)),
        row=DeploymentStatus,
        path="/status",
        tool="deployment_status",
    ),
    Operation(
        operation="getOpenapi",
        summary="This document.",
        answer=lambda *_: document(),
        row=dict[str, Any],
        path="/openapi.json",
    ),
)
PATHS: Mapping[str, View | Operation] = {operation.path: operation for operation in OPERATIONS if operation.path}


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    models = {path: operation.row for path, operation in PATHS.items()} | {"": Problem}
    answers, shared = TypeAdapter.json_schemas(
        [(path, "serialization", TypeAdapter(model)) for path, model in models.items()], ref_template=_REFERENCE
    )
    schemas = shared["$defs"]
    for name, schema in schemas.items():
        if "properties" in schema:
            # A row has every field, even a field with a default in the model.
            schemas[name] = schema | {"required": list(schema["properties"])}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kfm_dagster",
            "version": __version__,
            "summary": "The outcome of every NOAA object that this deployment ingests. Read-only.",
        },
        "servers": [{"url": BASE}],
        "paths": {
            path: {"get": _described(operation, answers[path, "serialization"])} for path, operation in PATHS.items()
        },
        "components": {"schemas": schemas},
    }


def _described(operation: View | Operation, row: Mapping[str, Any]) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    parameters = []
    for name, declared in operation.parameters.items():
        schema = {key: value for key, value in declared.items() if key != "description"}
        in_path = f"{{{name}}}" in str(operation.path)
        location: dict[str, Any] = {"in": "path", "required": True} if in_path else {"in": "query"}
        parameters.append({"name": name, **location, "description": declared["description"], "schema": schema})
    return {
        "operationId": operation.operation,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "OK", "content": {JSON: {"schema": _answer(operation, row)}}},
            **{code: {"description": text, "content": problem} for code, text in _REFUSALS.items()},
        },
    }


def _answer(operation: View | Operation, row: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(operation, Operation):
        return row
    members: dict[str, Any] = {operation.name: {"type": "array", "items": row}}
    ends = {"next": {"type": ["string", "null"]}, "complete": {"type": "boolean"}}
    members |= {name: schema for name, schema in ends.items() if name == operation.end}
    return {"type": "object", "properties": members, "required": list(members)}
