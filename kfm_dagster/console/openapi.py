"""What the JSON API says of itself: its operations, and the OpenAPI 3.1 document made of them.

Does not belong here: answering (`api.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfm_dagster import __version__
from kfm_dagster.alerts.plan import AlertRule, Level
from kfm_dagster.alerts.store import AlertState
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.exports.rejection_search import MOST_OF_MESSAGE_ID
from kfm_dagster.ledger.gaps import GapKind
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.search import MOST_TEXT, OPERATORS
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.views.view import MOST_OF_A_PAGE, PAGE

BASE = "/api/v1"
MOST_DAYS = 366
MOST_GAPS = 1_000
JSON = "application/json"
TIME = {"type": "string", "format": "date-time"}
TEXT = {"type": "string"}
NUMBER = {"type": "integer", "minimum": 0}
_OF_RECORD = NoddWalRecord.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
_UNIT_COLUMNS = (
    *("wal_id", "dataset", "object_uri", "object_version", "object_size", "event_time", "time_range_start"),
    *("time_range_end", "partition_key", "status", "attempts", "last_attempt_at", "next_attempt_at"),
    *("last_error_code", "last_error_message", "integrity_status", "metadata_status", "stac_status"),
    *("provenance_status", "stac_collection_id", "stac_item_id", "stac_item_href", "ingest_run_id", "replay_run_id"),
    *("lane", "created_at", "updated_at"),
)
"""Columns of the view `kfm_units` that are fields of the record, too."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One GET: what it answers, and the parameters that it takes."""

    name: str
    summary: str
    answer: Mapping[str, Any]
    parameters: Sequence[Mapping[str, Any]] = field(default=())


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string", **schema}}


_DATASET = _query("dataset", "Only of this dataset.", pattern="^[a-z0-9-]{1,40}$")
_SINCE = _query("since", "Only of events since then: a day or a moment, UTC unless it says otherwise.")
_FILTER = (
    _DATASET,
    _query("status", "Only of this status.", enum=[status.value for status in Status]),
    _query("code", "Only failed or quarantined for this error code.", maxLength=100),
    _query("operator", "Only failed or quarantined at this operator.", enum=list(OPERATORS)),
    _query("text", "Only objects whose URI has this in it, in its own case.", maxLength=MOST_TEXT),
    _SINCE,
    _query("until", "Only of events before then."),
)
_PAGING = (
    _query("limit", "At most so many.", type="integer", minimum=1, maximum=MOST_OF_A_PAGE, default=PAGE),
    _query("after", "Where the page before ended; `next` has it."),
)
_RECORD = {"allOf": [{"$ref": "#/components/schemas/Record"}, {"$ref": "#/components/schemas/History"}]}
OPERATIONS: Mapping[str, Operation] = {
    "/units": Operation(
        name="searchUnits",
        summary="Search units, the newest event first. A page may be short, and have a next all the same.",
        answer=_object(units=_list({"$ref": "#/components/schemas/Unit"}), next=_or_null(TEXT)),
        parameters=(*_FILTER, *_PAGING),
    ),
    "/units/{wal_id}": Operation(
        name="explainUnit",
        summary="One unit with its whole history, as kfm wal show --json prints it.",
        answer=_RECORD,
        parameters=(
            {
                "name": "wal_id",
                "in": "path",
                "required": True,
                "description": "Id of the unit.",
                "schema": {"type": "string", "format": "uuid"},
            },
        ),
    ),
    "/failures": Operation(
        name="listFailures",
        summary="Failed and quarantined units by error code, dataset and operator, most units first.",
        answer=_object(failures=_list({"$ref": "#/components/schemas/Failure"})),
        parameters=(_DATASET, _SINCE),
    ),
    "/gaps": Operation(
        name="listGaps",
        summary=f"Gaps of feeds, {MOST_GAPS:,} at most; `complete` says whether these are all.",
        answer=_object(gaps=_list({"$ref": "#/components/schemas/Gap"}), complete={"type": "boolean"}),
        parameters=(
            _DATASET,
            _query("days", "Of hours so many days back.", type="integer", minimum=1, maximum=MOST_DAYS, default=3),
            _query("closed", "Those that are closed, too.", type="boolean", default=False),
        ),
    ),
    "/rejections": Operation(
        name="searchRejections",
        summary="What came and could not be taken in, with the reason, the newest first.",
        answer=_object(rejections=_list({"$ref": "#/components/schemas/Rejection"}), next=_or_null(TEXT)),
        parameters=(
            _query("reason", "Only for this reason.", enum=[issue.value for issue in ParseIssue]),
            _query("message", "Only of the SQS message whose id begins so.", maxLength=MOST_OF_MESSAGE_ID),
            *_PAGING,
        ),
    ),
    "/alerts": Operation(
        name="listAlerts",
        summary="Alerts that fire or are acknowledged, in the order of opening.",
        answer=_object(alerts=_list({"$ref": "#/components/schemas/Alert"}), next=_or_null(TEXT)),
        parameters=(
            _query("rule", "Only of this rule.", enum=[rule.value for rule in AlertRule]),
            _query("days", "What resolved within so many days, too.", type="integer", minimum=1, maximum=MOST_DAYS),
            *_PAGING,
        ),
    ),
    "/datasets": Operation(
        name="listDatasets",
        summary="The datasets that are ingested here.",
        answer=_object(datasets=_list(_object(id=TEXT, title=TEXT, collection=TEXT, switched_off={"type": "boolean"}))),
    ),
    "/status": Operation(
        name="getStatus",
        summary="What waits for somebody, with the command that helps, and units by dataset and status.",
        answer=_object(
            at=TIME,
            well={"type": "boolean"},
            matters=_list(_object(urgency={"enum": ["now", "know"]}, what=TEXT, since=_or_null(TIME), next_step=TEXT)),
            units={"type": "object", "additionalProperties": {"type": "object", "additionalProperties": NUMBER}},
        ),
    ),
    "/openapi.json": Operation(name="getOpenapi", summary="This document.", answer={"type": "object"}),
}


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kfm_dagster",
            "version": __version__,
            "summary": "What became of every object of NOAA's that this deployment ingests. Nothing is changed by it.",
        },
        "servers": [{"url": BASE}],
        "paths": {path: {"get": _operation(operation)} for path, operation in OPERATIONS.items()},
        "components": {"schemas": _schemas()},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    refusals = {
        "400": "A parameter is none that there is, or has no such value.",
        "404": "There is no such unit, or no such dataset.",
        "503": "The database or a store does not answer.",
    }
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": list(operation.parameters),
        "responses": {
            "200": {"description": "OK", "content": {JSON: {"schema": operation.answer}}},
            **{code: {"description": text, "content": problem} for code, text in refusals.items()},
        },
    }


def _schemas() -> dict[str, Any]:
    record = {name: value for name, value in _OF_RECORD.items() if name != "$defs"}
    # Its history stands beside it.
    record.pop("additionalProperties")
    fields = record["properties"]
    unit = {name: fields[name] for name in _UNIT_COLUMNS}
    rows = {"type": "array", "items": {"type": "object"}}
    return {
        **_OF_RECORD["$defs"],
        "Record": record,
        "History": _object(issues=rows, versions=rows, lease=rows, cases=rows, governance=rows, history=rows),
        "Unit": _object(**unit, operator=_or_null({"enum": list(OPERATORS)})),
        "Failure": _object(
            code=TEXT,
            dataset=TEXT,
            operator=_or_null({"enum": list(OPERATORS)}),
            units=NUMBER,
            first_seen=TIME,
            last_seen=TIME,
            exact={"type": "boolean"},
        ),
        "Gap": _object(
            dataset=TEXT,
            product=TEXT,
            hour=TIME,
            kind={"enum": [kind.value for kind in GapKind]},
            expected=NUMBER,
            seen=NUMBER,
            first_seen=TIME,
            closed_at=_or_null(TIME),
            repaired_by=_or_null(TEXT),
        ),
        "Rejection": _object(
            rejected_at=TIME,
            message_id=_or_null(TEXT),
            record_index=_or_null({"type": "integer"}),
            dataset=_or_null(TEXT),
            object_uri=_or_null(TEXT),
            reason_code=TEXT,
            records=NUMBER,
            detail=TEXT,
        ),
        "Alert": _object(
            alert_id=NUMBER,
            key=TEXT,
            rule={"enum": [rule.value for rule in AlertRule]},
            subject=TEXT,
            state={"enum": [state.value for state in AlertState]},
            level={"enum": [level.value for level in Level]},
            opened_at=TIME,
            level_since=TIME,
            last_seen_at=TIME,
            observed=NUMBER,
            last_event_at=TIME,
            run_id=_or_null(TEXT),
            place=TEXT,
            last_notified_at=_or_null(TIME),
            notifications=NUMBER,
            acknowledged_at=_or_null(TIME),
            acknowledged_by=_or_null(TEXT),
            acknowledged_why=_or_null(TEXT),
            resolved_at=_or_null(TIME),
            undelivered=NUMBER,
        ),
        "Problem": _object(type=TEXT, title=TEXT, status={"type": "integer"}, detail=TEXT, instance=TEXT),
    }
