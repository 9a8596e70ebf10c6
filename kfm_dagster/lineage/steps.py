"""Lineage documents of a step: OpenLineage's events, PROV-O's activity and output (pure).

Here, a step is a row of `etl_steps`: an end of an intent of an idempotent node, of the chain or of another team. The
step's parent is the run. Figures that were not measured are absent.
Belongs here: the documents. Does not belong here: when steps are published (`noted.py`), or the lineage of
ingest units (`openlineage.py`, `prov.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson

from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.lineage.openlineage import (
    Event,
    data_object,
    error_facet,
    kfm_facet,
    official_facet,
    run_event,
    statistics_of_input,
    version_facet,
)
from kfm_dagster.lineage.prov import SERVICE, Node, software_agent
from kfm_dagster.lineage.unit import agent_id
from kfm_dagster.telemetry.measures import MEASURES, inputs_of

NAMESPACE = "kfm-etl"
INPUTS_NAMED = 100
"""Maximum inputs that a document names, because more would flood a lineage browser. If a step has more, OpenLineage has
one dataset with the number of inputs, and PROV has the first 100 inputs and the number of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """An end of an intent. `node` and `job` are public names; `measures` has measured figures."""

    run_id: str
    wal_id: int
    node: str
    job: str
    step: str
    status: str
    content_hash: str
    code_sha: str
    started_at: datetime
    ended_at: datetime
    inputs: Sequence[Mapping[str, Any]]
    artifact: tuple[str, str] | None
    """URI and SHA-256 of the output's file; None without a file."""
    has_output: bool
    """Whether the content has an output: this step's or, after a skip, the output of the step that applied it."""
    measures: Mapping[str, float | int | str]
    error: str | None
    outcome: str | None
    """Outcome in run-state; None for a node without run-state, such as another team's."""
    validation_summary: Mapping[str, Any] | None
    """Summary of the step's checks; None after a failure, without an output, and without run-state."""

    @classmethod
    def of(cls, row: Any, *, public: Callable[[str], str]) -> Step:
        """Return the step of a row of `lineage.unpublished_steps`."""
        # A replay executes an intent long after the intent was written; the measured work began with the replay.
        began = row.ended_at - timedelta(seconds=row.seconds) if row.seconds is not None else row.started_at
        kind, _, partition = row.node.partition("@")
        dataset, dot, rest = kind.partition(".")
        job = f"{public(dataset)}{dot}{rest}"
        outcome, summary = _run_state(row)
        return cls(
            run_id=str(row.run_id),
            wal_id=row.wal_id,
            node=f"{job}@{partition}" if partition else job,
            job=job,
            step=row.step,
            status=row.status,
            content_hash=row.content_hash,
            code_sha=row.payload["code"]["sha"],
            started_at=min(began, row.ended_at),
            ended_at=row.ended_at,
            inputs=inputs_of(row),
            artifact=_artifact(row.record),
            has_output=row.record is not None,
            measures={name: value for name in MEASURES if (value := getattr(row, name)) is not None},
            error=row.error,
            outcome=outcome,
            validation_summary=summary,
        )

    @property
    def openlineage_run_id(self) -> str:
        """Deterministic id, so that a backend recognises a repeated delivery."""
        return uuid8("openlineage-step", *self._identity)

    @property
    def activity_id(self) -> str:
        """PROV activity of the step."""
        return "urn:uuid:" + uuid8("prov-step", *self._identity)

    @property
    def run_activity_id(self) -> str:
        """PROV activity of the run, the same for all of its steps."""
        return "urn:uuid:" + uuid8("prov-run", self.run_id)

    @property
    def dataset_entity_id(self) -> str:
        """PROV entity of the node's output over all runs: run-state's `dataset_id`."""
        return "urn:uuid:" + uuid8("prov-dataset", self.job)

    @property
    def output_id(self) -> str:
        """PROV entity of the content's output; contents with equal files have different entities."""
        return "urn:uuid:" + uuid8("prov-node-output", self.content_hash)

    @property
    def _identity(self) -> tuple[str, ...]:
        return (self.run_id, str(self.wal_id), self.content_hash, self.status)


def step_events(step: Step) -> tuple[Event, Event]:
    """Return a step's START event and its COMPLETE or FAIL event."""
    applied = step.status == "APPLIED"
    job, run_id = {"namespace": NAMESPACE, "name": step.job}, step.openlineage_run_id
    facets = {"parent": _parent(step)}
    inputs = list(_inputs(step))
    start = run_event(
        "START", rfc3339(step.started_at), run_id, dict(facets), job=job, inputs=[dataset for dataset, _ in inputs]
    )
    facets["kfmStep"] = kfm_facet(
        "step",
        node=step.node,
        step=step.step,
        status=step.status,
        content_hash=step.content_hash,
        code_sha=step.code_sha,
        prov_activity_id=step.activity_id,
        **step.measures,
    )
    if step.outcome is not None:
        facets["kfmRunState"] = kfm_facet("run-state", dataset_id=step.job, run_id=step.run_id, outcome=step.outcome)
    if step.error is not None:
        facets["errorMessage"] = error_facet(step.error)
    end = run_event(
        "FAIL" if step.status == "FAILED" else "COMPLETE",
        rfc3339(step.ended_at),
        run_id,
        facets,
        job=job,
        inputs=[{**dataset, "inputFacets": facet} if facet else dataset for dataset, facet in inputs],
        outputs=list(_outputs(step)) if applied else [],
    )
    return start, end


def step_nodes(step: Step) -> Iterator[Node]:
    """Yield a step's PROV nodes: activity, run, dataset, and the used and generated entities."""
    applied = step.status == "APPLIED"
    used = [_content_id(entry["uri"], entry.get("checksum")) for entry in step.inputs[:INPUTS_NAMED]]
    activity: Node = {
        "id": step.activity_id,
        "type": ["Activity", "kfm:Step"],
        "startedAtTime": rfc3339(step.started_at),
        "endedAtTime": rfc3339(step.ended_at),
        "used": used if applied or not step.has_output else [*used, step.output_id],
        "wasAssociatedWith": [SERVICE, agent_id(step.job)],
        "wasInformedBy": step.run_activity_id,
        "kfm:run_id": step.run_id,
        "kfm:node": step.node,
        "kfm:step": step.step,
        "kfm:status": step.status,
        "kfm:content_hash": step.content_hash,
        "kfm:code_sha": step.code_sha,
        "kfm:inputs": len(step.inputs),
        "kfm:openlineage_run_id": step.openlineage_run_id,
        **{f"kfm:{name}": value for name, value in step.measures.items()},
    }
    if step.error is not None:
        activity["kfm:error"] = step.error
    if step.outcome is not None:
        activity |= {"kfm:dataset_id": step.job, "kfm:outcome": step.outcome}
    if step.validation_summary is not None:
        # As text, because PROV-JSON's attributes are scalar, and the summary's members differ by node.
        summary = orjson.dumps(step.validation_summary, option=orjson.OPT_SORT_KEYS)
        activity["kfm:validation_summary"] = summary.decode()
    yield activity
    yield {"id": step.run_activity_id, "type": ["Activity", "kfm:Run"], "kfm:run_id": step.run_id}
    yield {"id": step.dataset_entity_id, "type": ["Entity", "kfm:Dataset"], "kfm:dataset_id": step.job}
    for entry in step.inputs[:INPUTS_NAMED]:
        yield _content(entry["uri"], entry.get("checksum"))
    if applied:
        output: Node = {
            "id": step.output_id,
            "type": ["Entity", "kfm:NodeOutput"],
            "kfm:content_hash": step.content_hash,
            "wasGeneratedBy": step.activity_id,
            "wasDerivedFrom": used,
            # The output is this run's version of the dataset.
            "specializationOf": step.dataset_entity_id,
            "wasAttributedTo": SERVICE,
        }
        if step.artifact is not None:
            # The file is a separate entity, because the next node uses it, and contents with equal bytes share a file.
            output["alternateOf"] = _content_id(*step.artifact)
            yield _content(*step.artifact)
        yield output


def step_agents(steps: Sequence[Step]) -> Iterator[Node]:
    """Yield the agents of the steps' activities."""
    yield software_agent("kfm_dagster")
    for job in sorted({step.job for step in steps}):
        yield software_agent(job, actedOnBehalfOf=SERVICE)


def _inputs(step: Step) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each input dataset with its input facets, which have the known amounts of data read."""
    if len(step.inputs) > INPUTS_NAMED:
        whole = {"namespace": NAMESPACE, "name": f"manifest/{step.content_hash}"}
        yield whole, statistics_of_input(fileCount=len(step.inputs), size=step.measures.get("bytes_in"))
        return
    for entry in step.inputs:
        yield _dataset(entry["uri"]), statistics_of_input(size=entry.get("size"))


def _outputs(step: Step) -> Iterator[dict[str, Any]]:
    counts = {"rowCount": step.measures.get("rows_out"), "size": step.measures.get("bytes_out")}
    statistics = {name: value for name, value in counts.items() if value is not None}
    output: dict[str, Any] = {
        "namespace": NAMESPACE,
        "name": step.job,
        "facets": {"version": version_facet(step.content_hash)},
    }
    if statistics:
        facet = official_facet("1-0-2", "OutputStatisticsOutputDatasetFacet", **statistics)
        output["outputFacets"] = {"outputStatistics": facet}
    yield output
    if step.artifact is not None:
        yield _dataset(step.artifact[0])


def _dataset(uri: str) -> dict[str, Any]:
    """Return a manifest entry's OpenLineage dataset; a URI without scheme is of our own storage."""
    if "://" in uri:
        dataset = data_object(uri)
        return {**dataset, "name": dataset["name"] or "/"}
    scheme, separator, rest = uri.partition(":")
    return {"namespace": scheme, "name": rest} if separator else {"namespace": "kfm-storage", "name": uri}


def _parent(step: Step) -> dict[str, Any]:
    job = {"namespace": NAMESPACE, "name": "kfm.run"}
    return official_facet("1-2-0", "ParentRunFacet", run={"runId": step.run_id}, job=job)


def _run_state(row: Any) -> tuple[str | None, Mapping[str, Any] | None]:
    """Return outcome and summary from the applied record; None for a node without run-state."""
    if "dataset_id" not in row.payload.get("context", {}):
        return None, None
    if row.status == "FAILED":
        return "failed", None
    if row.record is None:
        return "skipped", None
    return "skipped" if row.status == "SKIPPED" else row.record["outcome"], row.record["validation_summary"]


def _artifact(record: Any) -> tuple[str, str] | None:
    """Return the file of a chain's record, or of another team's (`artifact`: `uri`, `sha256`)."""
    if not isinstance(record, dict):
        return None
    file = record.get("artifact")
    if not isinstance(file, dict):
        file = {"uri": record.get("artifact_uri"), "sha256": record.get("artifact_sha256")}
    uri, digest = file.get("uri"), file.get("sha256")
    return (uri, digest) if isinstance(uri, str) and isinstance(digest, str) else None


def _content(uri: str, checksum: str | None) -> Node:
    node: Node = {"id": _content_id(uri, checksum), "type": ["Entity", "kfm:Content"], "kfm:uri": uri}
    if checksum is not None:
        node["kfm:checksum"] = checksum
    return node


def _content_id(uri: str, checksum: str | None) -> str:
    return "urn:uuid:" + uuid8("prov-content", uri, checksum)
