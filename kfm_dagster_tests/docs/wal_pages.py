"""The generated parts of docs/wal: `python -m kfm_dagster_tests.docs.wal_pages` writes them again from the code.

Belongs here: what the pages say that the code says, too. Does not belong here: prose, which stands in the pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from kfm_dagster.contracts.model import CANONICAL_FIELDS
from kfm_dagster.ledger.record import EXTENSION_COLUMNS, NoddWalRecord, published_schema
from kfm_dagster.ledger.state_machine import OVERRIDES, SUCCESS_REQUIRES, TRANSITIONS

PAGES = Path(__file__).resolve().parents[2] / "docs" / "wal"
BLOCK = re.compile(r"(?P<begin><!-- generated: (?P<name>\w+) -->\n)(?P<text>.*?)(?P<end><!-- end -->)", re.DOTALL)


def written(page: str) -> str:
    """Return a page with its generated parts as the code has them. Raises KeyError for a part that nothing makes."""
    return BLOCK.sub(lambda found: f"{found['begin']}{PARTS[found['name']]()}{found['end']}", page)


def _canonical() -> str:
    return _fields(dict.fromkeys(CANONICAL_FIELDS, ""))


def _beside() -> str:
    return _fields(dict(EXTENSION_COLUMNS))


def _fields(reasons: Mapping[str, str]) -> str:
    schema = published_schema()
    rows = ["| field | type | meaning | example | source | also in |", "|---|---|---|---|---|---|"]
    for name, reason in reasons.items():
        entry = schema["properties"][name]
        # Of the model: the schema leaves out what a field's type says already.
        said = f"{NoddWalRecord.model_fields[name].description}" + (f" Reason: {reason}." if reason else "")
        seen = "<br>".join(f"`{path}`" for path in entry["x-seen-as"])
        example = f"`{json.dumps(entry['examples'][0])}`"
        rows.append(f"| `{name}` | {_type(entry, schema)} | {said} | {example} | {entry['x-source']} | {seen} |")
    return "\n".join(rows) + "\n"


def _type(entry: Mapping[str, object], schema: Mapping[str, dict[str, Mapping[str, object]]]) -> str:
    variants = entry.get("anyOf", [entry])
    assert isinstance(variants, list)
    return " or ".join(_one_type(one, schema) for one in variants)


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
        f"| `{name}` | {', '.join(f'`{one}`' for one in sorted(allowed))} |"
        for name, allowed in SUCCESS_REQUIRES.items()
    ]
    return "\n".join(rows) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "canonical": _canonical,
    "beside": _beside,
    "transitions": _transitions,
    "success": _success,
}
"""Names of the parts, and what makes each."""


if __name__ == "__main__":
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
