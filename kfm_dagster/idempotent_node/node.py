"""A node: its protocol, and `run_node`, which runs it.

    begin > transform > read back > upsert, with the node's own tables; an exception marks the intent FAILED

    result = run_node(nodes, HourlyWindow(...), run_id=run_id, code=code_fingerprint(folder, lockfile))

Belongs here: the protocol, and the order of a run. Does not belong here: batches, gates and run-state, which a stage of
the chain adds (`stages/run_contract.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, ManifestEntry
from kfm_dagster.idempotent_node.transaction import Content, Effect, IdempotentNodes, NodeResult, forced
from kfm_dagster.idempotent_node.wal import Intent
from kfm_dagster.storage.database import Transaction

Result = TypeVar("Result")
Stored_co = TypeVar("Stored_co", covariant=True)


class IdempotentNode(Protocol[Result, Stored_co]):
    """A deterministic node. Equal inputs, parameters and code give byte-identical results.

    `apply` returns an `Effect` for `run_node`; in a stage of the chain it returns a batch of envelopes.
    """

    @property
    def name(self) -> str:
        """Key of the node's checkpoint; for a partitioned node it ends with `@` and the partition."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the node, the same in every partition; nodes of two kinds never share content."""
        ...

    @property
    def step(self) -> str:
        """Name of the effect; most nodes have a single effect."""
        ...

    def inputs(self) -> Sequence[ManifestEntry]:
        """Return the inputs, in any order. Sensitive locations are masked already."""
        ...

    def params(self) -> Mapping[str, Any]:
        """Return every setting that changes the result, as JSON values."""
        ...

    def context(self) -> Mapping[str, Any]:
        """Return further values that a replay needs to rebuild the node; they change no result."""
        ...

    def transform(self) -> Result:
        """Compute deterministically: no clock, seeded randomness, fixed order, content-named files."""
        ...

    def apply(self, tx: Transaction, result: Result, /) -> Stored_co:
        """Write the node's tables in the transaction that sets APPLIED; return the stored result."""
        ...


@runtime_checkable
class ReadsBack(Protocol):
    """A node with effects outside the database."""

    def verify(self, result: Any, /) -> None:
        """Read back the effects of `transform`. Raises if they differ from the written effects."""
        ...


def content_of(
    node: IdempotentNode[Any, Any], *, code: CodeFingerprint, run_id: str, force: str | None = None
) -> Content:
    """Return a node's content; with `force` (a reason), content that no run has applied."""
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


def transformed(node: IdempotentNode[Result, Any]) -> Result:
    """Return a node's result, after reading back its effects outside the database."""
    result = node.transform()
    if isinstance(node, ReadsBack):
        node.verify(result)
    return result


def execute(nodes: IdempotentNodes, node: IdempotentNode[Result, Effect], intent: Intent) -> NodeResult:
    """Execute an intent. An exception marks the intent FAILED and propagates."""
    with nodes.failing(intent):
        result = transformed(node)
        with nodes.database.transaction() as tx:
            return nodes.upsert(intent, lambda tx: node.apply(tx, result), tx=tx)


def run_node(
    nodes: IdempotentNodes,
    node: IdempotentNode[Result, Effect],
    *,
    run_id: str,
    code: CodeFingerprint,
    force: str | None = None,
) -> NodeResult:
    """Run a node unless its content is applied. Exceptions mark the intent FAILED and propagate."""
    content = content_of(node, code=code, run_id=run_id, force=force)
    nodes.meter.prepare()
    with nodes.database.transaction() as tx:
        intent, skipped = nodes.begin(content, run_id=run_id, tx=tx)
    return skipped or execute(nodes, node, intent)
