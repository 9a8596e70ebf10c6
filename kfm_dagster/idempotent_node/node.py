"""A node: what it has to say of itself, and the one way in which one is carried out.

    begin > transform > read back > upsert, with the node's own tables; what is raised marks the intent FAILED

    result = run_node(nodes, HourlyWindow(...), run_id=run_id, code=code_fingerprint(folder, lockfile))

Belongs here: the protocol, and the order. Does not belong here: what the stages of this package's chain put around it:
batches, gates, run-state (`stages/run_contract.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, ManifestEntry
from kfm_dagster.idempotent_node.transaction import Content, Effect, IdempotentNodes, NodeResult, forced
from kfm_dagster.idempotent_node.wal import Intent
from kfm_dagster.storage.database import Transaction

Made = TypeVar("Made")
Stored_co = TypeVar("Stored_co", covariant=True)


class IdempotentNode(Protocol[Made, Stored_co]):
    """A deterministic node. Equal inputs, parameters and code give byte-identical results.

    What it makes, and what is stored of that, is an `Effect` for the caller of `run_node`; a stage of the chain makes
    and stores a batch of envelopes.
    """

    @property
    def name(self) -> str:
        """Key of its checkpoint. A partitioned node names its partition here, behind an `@`."""
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

    def transform(self) -> Made:
        """Compute: no clock, no unseeded randomness, an explicit order; files are named by their content."""
        ...

    def apply(self, tx: Transaction, made: Made, /) -> Stored_co:
        """Write the node's own tables, in the transaction that makes it APPLIED; return what was made, as stored."""
        ...


@runtime_checkable
class ReadsBack(Protocol):
    """A node that leaves something outside the database."""

    def verify(self, made: Any, /) -> None:
        """Read back what `transform` has left there. Raises when it is not there as written."""
        ...


def content_of(
    node: IdempotentNode[Any, Any], *, code: CodeFingerprint, run_id: str, force: str | None = None
) -> Content:
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


def transformed(node: IdempotentNode[Made, Any]) -> Made:
    """Return what a node makes, once what it left outside the database has been read back."""
    made = node.transform()
    if isinstance(node, ReadsBack):
        node.verify(made)
    return made


def execute(nodes: IdempotentNodes, node: IdempotentNode[Made, Effect], intent: Intent) -> NodeResult:
    """Carry an intent out. What it raises marks the intent FAILED and is raised on."""
    with nodes.failing(intent):
        made = transformed(node)
        with nodes.database.transaction() as tx:
            return nodes.upsert(intent, lambda tx: node.apply(tx, made), tx=tx)


def run_node(
    nodes: IdempotentNodes,
    node: IdempotentNode[Made, Effect],
    *,
    run_id: str,
    code: CodeFingerprint,
    force: str | None = None,
) -> NodeResult:
    """Run a node unless its content has been applied. What it raises marks its intent FAILED and is raised on."""
    content = content_of(node, code=code, run_id=run_id, force=force)
    nodes.meter.prepare()
    with nodes.database.transaction() as tx:
        intent, skipped = nodes.begin(content, run_id=run_id, tx=tx)
    return skipped or execute(nodes, node, intent)
