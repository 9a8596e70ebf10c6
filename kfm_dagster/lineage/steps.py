"""A step as both paths tell it: START and COMPLETE or FAIL of OpenLineage, activity and output of PROV-O (pure).

A step is one end of one intent of an idempotent node (`etl_steps`): of a stage of our chain, or of any other team's
node. Its parent is the run. What was not measured is absent.
Belongs here: what the documents say. Does not belong here: which steps are told when (`step_events.py`), or the
lineage of ingest units (`openlineage.py`, `prov.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from kfm_dagster import __version__
from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.lineage.openlineage import RUN_EVENT_SCHEMA, Event
from kfm_dagster.lineage.prov import SERVICE, Node
from kfm_dagster.lineage.unit import PRODUCER, SCHEMAS, agent_id

NAMESPACE = "kfm-etl"
STORAGE_NAMESPACE = "kfm-storage"
RUN_JOB = "kfm.run"
"""Job of a step's parent, the run."""
INPUTS_NAMED = 100
"""A manifest of more entries is named as one dataset and counted: a batch's would bury every lineage browser."""

_FACETS = "https://openlineage.io/spec/facets/"
_STEP_SCHEMA = f"{SCHEMAS}kfm-step-facet.schema.json"
_RUN_STATE_SCHEMA = f"{SCHEMAS}kfm-run-state-facet.schema.json"
_PRODUCER = PRODUCER + __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRunState:
    """What run-state has of a step: its outcome there, and the summary of its checks where it has an output."""

    outcome: str
    validation_summary: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One end of one intent. `node` and `job` are public names; `measures` has what was measured and nothing else."""

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
    """URI and SHA-256 of the file that the output names, if it names one."""
    has_output: bool
    """Whether the content has an output: this step's, or for a skip that of the first to apply it."""
    measures: Mapping[str, float | int | str]
    error: str | None = None
    run_state: StepRunState | None = None
    """None for a node that keeps none: another team's may do without."""

    @property
    def openlineage_run_id(self) -> str:
        """Deterministic, so that a backend that is told twice knows it."""
        return uuid8("openlineage-step", *self._identity)

    @property
    def activity_id(self) -> str:
        """PROV activity of the step."""
        return "urn:uuid:" + uuid8("prov-step", *self._identity)

    @property
    def run_activity_id(self) -> str:
        """PROV activity of the run, one for all of its steps."""
        return "urn:uuid:" + uuid8("prov-run", self.run_id)

    @property
    def dataset_entity_id(self) -> str:
        """PROV entity of what the node makes, run by run: run-state's `dataset_id`."""
        return "urn:uuid:" + uuid8("prov-dataset", self.job)

    @property
    def output_id(self) -> str:
        """PROV entity of the content's output, which has one generation however many files hold the same bytes."""
        return "urn:uuid:" + uuid8("prov-node-output", self.content_hash)

    @property
    def _identity(self) -> tuple[str, ...]:
        return (self.run_id, str(self.wal_id), self.content_hash, self.status)


def step_events(step: Step) -> tuple[Event, Event]:
    """Return the START and the COMPLETE (or FAIL) event of a step."""
    applied = step.status == "APPLIED"
    common = {
        "job": {"namespace": NAMESPACE, "name": step.job},
        "producer": _PRODUCER,
        "schemaURL": RUN_EVENT_SCHEMA,
    }
    start = {
        "eventType": "START",
        "eventTime": rfc3339(step.started_at),
        "run": {"runId": step.openlineage_run_id, "facets": {"parent": _parent(step)}},
        "inputs": [dataset for dataset, _ in _inputs(step)],
        "outputs": [],
        **common,
    }
    facets = {"parent": _parent(step), "kfmStep": _step_facet(step)}
    if step.run_state is not None:
        facets["kfmRunState"] = {
            "_producer": _PRODUCER,
            "_schemaURL": _RUN_STATE_SCHEMA,
            "dataset_id": step.job,
            "run_id": step.run_id,
            "outcome": step.run_state.outcome,
        }
    if step.error is not None:
        facets["errorMessage"] = {
            **_base("1-0-1", "ErrorMessageRunFacet"),
            "message": step.error,
            "programmingLanguage": "PYTHON",
        }
    end = {
        "eventType": "FAIL" if step.status == "FAILED" else "COMPLETE",
        "eventTime": rfc3339(step.ended_at),
        "run": {"runId": step.openlineage_run_id, "facets": facets},
        "inputs": [{**dataset, "inputFacets": facet} if facet else dataset for dataset, facet in _inputs(step)],
        "outputs": list(_outputs(step)) if applied else [],
        **common,
    }
    return start, end


def step_nodes(step: Step) -> Iterator[Node]:
    """Yield the PROV nodes of a step: its activity, what it used and generated, its run and its dataset."""
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
    if step.run_state is not None:
        activity |= {"kfm:dataset_id": step.job, "kfm:outcome": step.run_state.outcome}
        if step.run_state.validation_summary is not None:
            # As text: PROV-JSON's attributes are values, and its members differ by node.
            summary = orjson.dumps(step.run_state.validation_summary, option=orjson.OPT_SORT_KEYS)
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
            # A version of the dataset, as the run gave it.
            "specializationOf": step.dataset_entity_id,
            "wasAttributedTo": SERVICE,
        }
        if step.artifact is not None:
            # The file is what the next node uses; equal bytes of another content are the same file.
            output["alternateOf"] = _content_id(*step.artifact)
            yield _content(*step.artifact)
        yield output


def step_agents(steps: Sequence[Step]) -> Iterator[Node]:
    """Yield the agents that the steps' activities are associated with."""
    yield {"id": SERVICE, "type": ["Agent", "prov:SoftwareAgent"], "kfm:name": "kfm_dagster"}
    for job in sorted({step.job for step in steps}):
        yield {
            "id": agent_id(job),
            "type": ["Agent", "prov:SoftwareAgent"],
            "kfm:name": job,
            "actedOnBehalfOf": SERVICE,
        }


def _inputs(step: Step) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each input dataset, and what is known of how much of it was read."""
    if len(step.inputs) > INPUTS_NAMED:
        whole = {"namespace": NAMESPACE, "name": f"manifest/{step.content_hash}"}
        yield whole, _input_statistics(fileCount=len(step.inputs), size=step.measures.get("bytes_in"))
        return
    for entry in step.inputs:
        yield _dataset(entry["uri"]), _input_statistics(size=entry.get("size"))


def _outputs(step: Step) -> Iterator[dict[str, Any]]:
    statistics = {
        name: value
        for name, value in (
            ("rowCount", step.measures.get("rows_out")),
            ("size", step.measures.get("bytes_out")),
        )
        if value is not None
    }
    output: dict[str, Any] = {
        "namespace": NAMESPACE,
        "name": step.job,
        "facets": {
            "version": {**_base("1-0-1", "DatasetVersionDatasetFacet"), "datasetVersion": step.content_hash},
        },
    }
    if statistics:
        facet = _base("1-0-2", "OutputStatisticsOutputDatasetFacet")
        output["outputFacets"] = {"outputStatistics": {**facet, **statistics}}
    yield output
    if step.artifact is not None:
        yield _dataset(step.artifact[0])


def _input_statistics(**known: Any) -> dict[str, Any]:
    found = {name: value for name, value in known.items() if value is not None}
    return {"inputStatistics": {**_base("1-0-0", "InputStatisticsInputDatasetFacet"), **found}} if found else {}


def _dataset(uri: str) -> dict[str, Any]:
    """Name a manifest's entry as OpenLineage names datasets; what has no scheme stands in our own storage."""
    scheme, separator, rest = uri.partition("://")
    if separator:
        authority, _, path = rest.partition("/")
        return {"namespace": f"{scheme}://{authority}", "name": path or "/"}
    scheme, separator, rest = uri.partition(":")
    return {"namespace": scheme, "name": rest} if separator else {"namespace": STORAGE_NAMESPACE, "name": uri}


def _parent(step: Step) -> dict[str, Any]:
    return {
        **_base("1-2-0", "ParentRunFacet"),
        "run": {"runId": step.run_id},
        "job": {"namespace": NAMESPACE, "name": RUN_JOB},
    }


def _step_facet(step: Step) -> dict[str, Any]:
    return {
        "_producer": _PRODUCER,
        "_schemaURL": _STEP_SCHEMA,
        "node": step.node,
        "step": step.step,
        "status": step.status,
        "content_hash": step.content_hash,
        "code_sha": step.code_sha,
        "prov_activity_id": step.activity_id,
        **step.measures,
    }


def _content(uri: str, checksum: str | None) -> Node:
    node: Node = {"id": _content_id(uri, checksum), "type": ["Entity", "kfm:Content"], "kfm:uri": uri}
    if checksum is not None:
        node["kfm:checksum"] = checksum
    return node


def _content_id(uri: str, checksum: str | None) -> str:
    return "urn:uuid:" + uuid8("prov-content", uri, checksum)


def _base(release: str, name: str) -> dict[str, Any]:
    return {"_producer": _PRODUCER, "_schemaURL": f"{_FACETS}{release}/{name}.json#/$defs/{name}"}
