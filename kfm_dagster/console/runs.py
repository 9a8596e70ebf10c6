"""A run: what each node did and why, as `kfm explain` says it, and where the Dagster UI shows it. Only reads."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.pages import Pages, parameters
from kfm_dagster.console.request_parameters import given
from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.run_state.choice import looked_up_states


def routes(pages: Pages) -> list[Route]:
    """Return the route of a run."""
    pipeline = pages.pipeline

    def run(request: Request) -> Response:
        given(parameters(request), known=())
        states = looked_up_states(pipeline.database, pipeline.settings)
        report = Explanations(database=pipeline.database, run_states=states).explain(request.path_params["run_id"])
        return pages.page(request, "run.html", report=report)

    return [Route("/runs/{run_id}", run, methods=["GET"])]
