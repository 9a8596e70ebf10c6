"""Units: pages of what a filter means, failures in groups, and the whole history of one unit. Only reads.

Belongs here: those pages. Does not belong here: searching (`views/units.py`), deciding about them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console import operations
from kfm_dagster.console.pages import Pages, list_route, parameters
from kfm_dagster.console.request_parameters import given
from kfm_dagster.contracts.repairs import REPAIRS
from kfm_dagster.errors import ArtifactError, DependencyUnavailableError
from kfm_dagster.exports.explanations.unit_history import unit_history
from kfm_dagster.ingest.evidence import read_evidence
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCase, QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.storage.s3 import Store
from kfm_dagster.views.units import FAILURES, UNITS, count_units


def routes(pages: Pages) -> list[Route]:
    """Return the routes of units and failures."""
    pipeline = pages.pipeline

    def unit(request: Request) -> Response:
        given(parameters(request), known=())
        with pipeline.database.snapshot() as view:
            record = operations.record_of(pipeline.ledger, str(request.path_params["wal_id"]), tx=view)
        return pages.page(request, "unit.html", **history(pipeline, record))

    def item(request: Request) -> Response:
        item = operations.item(pipeline, {"wal_id": str(request.path_params["wal_id"])})
        return Response(json.dumps(item), media_type="application/geo+json")

    return [
        list_route(pages, UNITS, "/units", "units.html", count=partial(count_units, pipeline)),
        Route("/units/{wal_id:uuid}", unit, methods=["GET"]),
        Route("/units/{wal_id:uuid}/item.json", item, methods=["GET"]),
        list_route(pages, FAILURES, "/failures"),
    ]


def history(pipeline: Pipeline, record: NoddWalRecord) -> dict[str, Any]:
    """Return all that is recorded about a unit, from its message to its lineage."""
    found = unit_history(pipeline, record)
    with pipeline.database.snapshot() as view:
        lineage = view.run("lineage.links", wal_id=record.wal_id, lineage_id="").all()
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    message_id = record.sqs_message_id
    return {
        "record": record,
        "key": record.object_uri.rpartition("/")[2],
        "message": cases.messages([message_id]).get(message_id) if message_id else None,
        "found": found,
        "repair": REPAIRS.get(record.last_error_code or ""),
        "lineage": lineage,
        "versions": [one for one in found.versions if one.wal_id != record.wal_id],
        "cases": [(case, _evidence(pipeline.store, case)) for case in found.cases],
        "catalog": pipeline.settings.catalog_public_url.rstrip("/"),
    }


def _evidence(store: Store, case: QuarantineCase) -> Mapping[str, Any] | None:
    if case.evidence_file is None:
        return None
    try:
        return read_evidence(store, case.evidence_file)
    except (ArtifactError, DependencyUnavailableError) as error:
        # The rest of the history is worth seeing all the same.
        return {"lost": str(error.observed)}
