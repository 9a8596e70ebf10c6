"""A node of another team's: what it has to say of itself, and the one way to run it.

    result = run_node(nodes, HourlyWindow(...), run_id=run_id, code=code_fingerprint(folder, lockfile))

Belongs here: the protocol and its run. Does not belong here: the chain of this package's operators, which has batches,
claims and run-state around the same upsert (`stages/run_contract.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, ManifestEntry
from kfm_dagster.idempotent_node.transaction import Content, Effect, IdempotentNodes, Output, forced
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.storage.database import Transaction


class IdempotentNode(Protocol):
    """A deterministic node. Equal inputs, parameters and code give byte-identical records."""

    @property
    def name(self) -> str:
        """Key of its checkpoint. A partitioned node names its partition here."""
        ...

    @property
    def kind(self) -> str:
        """What it is, the same in every partition: two kinds never share content."""
        ...

    @property
    def step(self) -> str:
        """Which of its effects this is; most nodes have one."""
        ...

    def inputs(self) -> Sequence[ManifestEntry]:
        """Return what it consumes, in any order. Sensitive locations are masked before they get here."""
        ...

    def params(self) -> Mapping[str, Any]:
        """Return every setting that changes the result, as JSON values."""
        ...

    def context(self) -> Mapping[str, Any]:
        """Return what a replay needs to make the node again from its payload and that changes no result."""
        ...

    def transform(self) -> Effect:
        """Compute: no clock, no unseeded randomness, an explicit order; files are named by their content."""
        ...

    def apply(self, tx: Transaction, effect: Effect) -> None:
        """Write what belongs into the node's own tables, in the transaction that makes it APPLIED."""
        ...

    def verify(self, effect: Effect) -> None:
        """Read back what `transform` left outside the database. Raises when it is not there as written."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """How a run of a node ended. `applied_run_id` is the run whose work a skip relies on."""

    status: IntentStatus
    output: Output
    applied_run_id: str


def content_of(node: IdempotentNode, *, code: CodeFingerprint, run_id: str, force: str | None = None) -> Content:
    """Return what a node is about to do; with a reason to `force` it is content that was never applied."""
    params = node.params()
    return Content(
        node=node.name,
        kind=node.kind,
        step=node.step,
        inputs=node.inputs(),
        params=params if force is None else forced(params, run_id=run_id, reason=force),
        code=code,
        context=node.context(),
    )


def run_node(
    nodes: IdempotentNodes, node: IdempotentNode, *, run_id: str, code: CodeFingerprint, force: str | None = None
) -> NodeResult:
    """Run a node unless its content has been applied. What it raises marks its intent FAILED and is raised on."""
    begun = nodes.begin(content_of(node, code=code, run_id=run_id, force=force), run_id=run_id)
    if begun.output is not None and begun.applied_by is not None:
        return NodeResult(status=IntentStatus.SKIPPED, output=begun.output, applied_run_id=begun.applied_by.run_id)
    try:
        effect = node.transform()
        node.verify(effect)

        def apply(tx: Transaction) -> Effect:
            node.apply(tx, effect)
            return effect

        upserted = nodes.upsert(begun.intent, apply)
    except Exception as error:
        nodes.fail(begun.intent, error)
        raise
    applied = nodes.intents.applied(begun.intent.content_hash) or begun.intent
    return NodeResult(status=upserted.status, output=upserted.output, applied_run_id=applied.run_id)
