"""Replay of PENDING and FAILED intents, which are revisited until their content is applied.

An intent whose worker crashed or failed runs again from its payload. It is SKIPPED if another process has applied the
same content meanwhile, because content must not take effect twice. It is also SKIPPED if its node has applied later
content, because an old result must not replace a newer result. Does not belong here: replaying ingest units of the
ledger, with selection, guards and pacing (`kfm_dagster/recovery/`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kfm_dagster.errors import ExitCode, KfmError
from kfm_dagster.idempotent_node.node import IdempotentNode, execute
from kfm_dagster.idempotent_node.transaction import OWN_PARAMETERS, Effect, IdempotentNodes
from kfm_dagster.idempotent_node.wal import Intent, IntentStatus
from kfm_dagster.redaction import error_text, redacted_error

_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class IntentReplay:
    """Results of a replay, by `wal_id`. `failed` has the error of each failed intent."""

    applied: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)


class ContentChangedError(KfmError):
    """The rebuilt node has other inputs or parameters than the intent."""

    exit_code = ExitCode.REFUSED


def replay_intents(
    nodes: IdempotentNodes,
    rebuild: Callable[[Intent], IdempotentNode[Any, Effect]],
    *,
    node: str | None = None,
    started_before: datetime | None = None,
) -> IntentReplay:
    """Revisit each unresolved intent of a node, or of all nodes, once, oldest first.

    `rebuild` creates the node from an intent's payload. With `started_before`, later intents are left to the workers
    that may still run them.
    """
    report = IntentReplay()
    for intent in nodes.intents.unresolved(node):
        if started_before is not None and intent.started_at >= started_before:
            continue
        try:
            status = _again(nodes, intent, rebuild)
        except Exception as error:
            _LOG.warning("replaying intent %d of %s failed", intent.wal_id, intent.node, exc_info=redacted_error(error))
            report.failed[intent.wal_id] = error_text(error)
        else:
            (report.applied if status is IntentStatus.APPLIED else report.skipped).append(intent.wal_id)
    return report


def _again(
    nodes: IdempotentNodes, intent: Intent, rebuild: Callable[[Intent], IdempotentNode[Any, Effect]]
) -> IntentStatus:
    with nodes.failing(intent):
        if not nodes.take_up(intent):
            return IntentStatus.SKIPPED
        node = rebuild(intent)
        _refuse_another(node, intent)
    return execute(nodes, node, intent).status


def _refuse_another(node: IdempotentNode[Any, Effect], intent: Intent) -> None:
    """Refuse a node with other inputs or parameters, whose result would get a wrong hash."""
    added = {name: value for name, value in intent.payload["params"].items() if name.startswith(OWN_PARAMETERS)}
    actual = {
        "inputs": sorted(
            (entry.canonical() for entry in node.inputs()), key=lambda entry: json.dumps(entry, sort_keys=True)
        ),
        "params": {**node.params(), **added},
    }
    expected = {
        "inputs": sorted(intent.payload["inputs"], key=lambda entry: json.dumps(entry, sort_keys=True)),
        "params": intent.payload["params"],
    }
    for member, value in actual.items():
        if json.dumps(value, sort_keys=True) != json.dumps(expected[member], sort_keys=True):
            raise ContentChangedError(
                f"the {member} of {intent.node} have changed since its intent",
                observed=value,
                expected=expected[member],
                next_step="run the node; its new content makes this intent obsolete",
            )
