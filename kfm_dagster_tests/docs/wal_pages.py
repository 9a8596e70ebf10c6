"""Write the generated parts of docs/wal: `python -m kfm_dagster_tests.docs.wal_pages`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from kfm_dagster.contracts.model import CANONICAL_FIELDS
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import OVERRIDES, SUCCESS_REQUIRES, TRANSITIONS
from kfm_dagster_tests.schemas import wal_record_schema

PAGES = Path(__file__).resolve().parents[2] / "docs" / "wal"
BLOCK = re.compile(r"(?P<begin><!-- generated: (?P<name>\w+) -->\n)(?P<text>.*?)(?P<end><!-- end -->)", re.DOTALL)


EXTENSION_COLUMNS: tuple[tuple[str, str], ...] = (
    ("object_version", "a rewritten object (new ETag) is another unit, so the version is part of the identity"),
    ("object_size", "integrity-check compares the announced size with the stored one"),
    ("sequencer", "orders the events of one key (S3 event notification)"),
    ("partition_key", "a run claims one UTC day"),
    ("priority", "claims take urgent units first"),
    ("schema_version", "version of the parsed message shape"),
    ("sqs_message_id", "identifies the first announcement"),
    ("sns_message_id", "identifies the first notification"),
    ("topic_arn", "identifies the first topic"),
    ("subject", "the notification's subject"),
    ("next_attempt_at", "time of the next attempt of a failed unit"),
    ("changed_by", "actor of the last change; the history copies it"),
    ("change_reason", "reason of the last change; the history copies it"),
    ("extension", "the dataset's own fields, from the groups of its key grammar"),
    ("lane", "live units never wait for a backfill or a replay"),
    ("replay_run_id", "identifies the replay that requeued the unit"),
    ("batch_limit", "a unit that kills every process must not use up the attempts of other units"),
)
"""Columns besides the canonical fields, each with its reason (NODD WAL specification, end of section 3)."""


def written(page: str) -> str:
    """Return a page with its generated parts renewed. Raises KeyError for an unknown part."""
    return BLOCK.sub(lambda match: f"{match['begin']}{PARTS[match['name']]()}{match['end']}", page)


def _fields(reasons: Mapping[str, str]) -> str:
    schema = wal_record_schema()
    rows = ["| field | type | meaning | example | source | also in |", "|---|---|---|---|---|---|"]
    for name, reason in reasons.items():
        entry = schema["properties"][name]
        # The description comes from the model, because the schema omits that of some types.
        meaning = f"{NoddWalRecord.model_fields[name].description}" + (f" Reason: {reason}." if reason else "")
        locations = "<br>".join(f"`{path}`" for path in entry["x-seen-as"])
        example = f"`{json.dumps(entry['examples'][0])}`"
        rows.append(
            f"| `{name}` | {_type(entry, schema)} | {meaning} | {example} | {entry['x-source']} | {locations} |"
        )
    return "\n".join(rows) + "\n"


def _type(entry: Mapping[str, object], schema: Mapping[str, dict[str, Mapping[str, object]]]) -> str:
    variants = entry.get("anyOf", [entry])
    assert isinstance(variants, list)
    return " or ".join(_one_type(variant, schema) for variant in variants)


def _one_type(entry: Mapping[str, object], schema: Mapping[str, dict[str, Mapping[str, object]]]) -> str:
    if (reference := entry.get("$ref")) is not None:
        choices = schema["$defs"][str(reference).rsplit("/", 1)[1]]["enum"]
        assert isinstance(choices, list)
        return ", ".join(f"`{choice}`" for choice in choices)
    return "time" if entry.get("format") == "date-time" else str(entry["type"])


def _transitions() -> str:
    rows = ["| from | to | trigger | condition |", "|---|---|---|---|"]
    for rules, by in ((TRANSITIONS, ""), (OVERRIDES, "a governed override: ")):
        rows += [
            f"| {rule.from_status or 'no record'} | {rule.to_status} | {by}{rule.trigger} | {rule.condition} |"
            for rule in rules
        ]
    return "\n".join(rows) + "\n"


def _success() -> str:
    rows = ["| sub-status | allowed for a success |", "|---|---|"]
    rows += [
        f"| `{name}` | {', '.join(f'`{value}`' for value in sorted(allowed))} |"
        for name, allowed in SUCCESS_REQUIRES.items()
    ]
    return "\n".join(rows) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "canonical": lambda: _fields(dict.fromkeys(CANONICAL_FIELDS, "")),
    "beside": lambda: _fields(dict(EXTENSION_COLUMNS)),
    "transitions": _transitions,
    "success": _success,
}
"""The functions that generate the parts, by name."""


if __name__ == "__main__":
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
