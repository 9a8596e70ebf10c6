"""Histories: all records of a unit, and the nodes' actions and reasons in a run. Only reads.

Does not belong here: lists (`lists.py`), decisions about units.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console import operations
from kfm_dagster.console.pages import Pages, query_of
from kfm_dagster.contracts.repairs import REPAIRS
from kfm_dagster.errors import ArtifactError, DependencyUnavailableError
from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.exports.explanations.unit_history import unit_history
from kfm_dagster.ingest.evidence import read_evidence
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCase, QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.run_state.choice import looked_up_states
from kfm_dagster.storage.s3 import Store


def routes(pages: Pages) -> list[Route]:
    """Return the routes of a unit, of its Item and of a run."""
    pipeline = pages.pipeline

    def unit(request: Request) -> Response:
        query_of(request)
        with pipeline.database.snapshot() as view:
            record = operations.record_of(pipeline.ledger, str(request.path_params["wal_id"]), tx=view)
        return pages.page(request, "unit.html", **history(pipeline, record))

    def item(request: Request) -> Response:
        item = operations.item(pipeline, {"wal_id": str(request.path_params["wal_id"])})
        return Response(json.dumps(item), media_type="application/geo+json")

    def run(request: Request) -> Response:
        query_of(request)
        states = looked_up_states(pipeline.database, pipeline.settings)
        report = Explanations(database=pipeline.database, run_states=states).explain(request.path_params["run_id"])
        return pages.page(request, "run.html", report=report)

    return [
        Route("/units/{wal_id:uuid}", unit, methods=["GET"]),
        Route("/units/{wal_id:uuid}/item.json", item, methods=["GET"]),
        Route("/runs/{run_id}", run, methods=["GET"]),
    ]


def history(pipeline: Pipeline, record: NoddWalRecord) -> dict[str, Any]:
    """Return all records of a unit, from its message to its lineage."""
    details = unit_history(pipeline, record)
    with pipeline.database.snapshot() as view:
        lineage = view.run("lineage.links", wal_id=record.wal_id, lineage_id="").all()
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    message_id = record.sqs_message_id
    return {
        "record": record,
        "key": record.object_uri.rpartition("/")[2],
        "message": cases.messages([message_id]).get(message_id) if message_id else None,
        "found": details,
        "repair": REPAIRS.get(record.last_error_code or ""),
        "lineage": lineage,
        "versions": [version for version in details.versions if version.wal_id != record.wal_id],
        "cases": [(case, _evidence(pipeline.store, case)) for case in details.cases],
        "catalog": pipeline.settings.catalog_public_url.rstrip("/"),
    }


def _evidence(store: Store, case: QuarantineCase) -> Mapping[str, Any] | None:
    if case.evidence_file is None:
        return None
    try:
        return read_evidence(store, case.evidence_file)
    except (ArtifactError, DependencyUnavailableError) as error:
        # The rest of the history is shown all the same.
        return {"lost": str(error.observed)}
