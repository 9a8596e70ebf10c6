"""inputs_hash: a node's inputs and parameters as one digest (run-state pattern, section 4).

    inputs_hash = "sha256:" + SHA-256(canonical JSON of {"inputs": [...], "parameters": {...}})

Inputs are sorted by URI, keys lexicographically, text is UTF-8, numbers as JSON has them. Equal inputs in any order
give equal hashes; any change of a member changes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class InputReference:
    """One input: its URI and the version of its content. External calls add query and window."""

    uri: str
    checksum: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    window: tuple[str, str] | None = None

    def canonical(self) -> dict[str, Any]:
        """Return the members that are set, ready for JSON."""
        members = {
            "uri": self.uri,
            "checksum": self.checksum,
            "etag": self.etag,
            "last_modified": self.last_modified,
            "query": dict(self.query) or None,
            "window": list(self.window) if self.window else None,
        }
        return {key: value for key, value in members.items() if value is not None}


def canonical_json(value: Any) -> bytes:
    """Encode with sorted keys and no spaces. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def inputs_hash(inputs: Iterable[InputReference], parameters: Mapping[str, Any]) -> str:
    """Return `sha256:<64 hex>` over inputs and parameters (JSON values only)."""
    encoded = sorted(
        (reference.canonical() for reference in inputs), key=lambda item: (item["uri"], canonical_json(item))
    )
    return "sha256:" + hashlib.sha256(canonical_json({"inputs": encoded, "parameters": parameters})).hexdigest()
