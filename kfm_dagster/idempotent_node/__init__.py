"""The idempotent-node pattern: content takes effect once, despite crashes and repeated runs.

`run_node` runs one node; runners of many nodes build on `IdempotentNodes`. Start with `docs/idempotent-node.md`.
"""

from kfm_dagster.idempotent_node.compute_hash import (
    CodeFingerprint,
    ManifestEntry,
    code_fingerprint,
    compute_content_hash,
)
from kfm_dagster.idempotent_node.node import IdempotentNode, ReadsBack, content_of, run_node
from kfm_dagster.idempotent_node.replay import ContentChangedError, IntentReplay, replay_intents
from kfm_dagster.idempotent_node.steps import StepEnd, StepMeter
from kfm_dagster.idempotent_node.transaction import Content, Effect, IdempotentNodes, NodeResult, Output
from kfm_dagster.idempotent_node.wal import Intent, Intents, IntentStatus, run_uuid

__all__ = [
    "CodeFingerprint",
    "Content",
    "ContentChangedError",
    "Effect",
    "IdempotentNode",
    "IdempotentNodes",
    "Intent",
    "IntentReplay",
    "IntentStatus",
    "Intents",
    "ManifestEntry",
    "NodeResult",
    "Output",
    "ReadsBack",
    "StepEnd",
    "StepMeter",
    "code_fingerprint",
    "compute_content_hash",
    "content_of",
    "replay_intents",
    "run_node",
    "run_uuid",
]
