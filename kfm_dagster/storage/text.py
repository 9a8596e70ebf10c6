"""Text that every database can store, from texts of senders, files and drivers.

PostgreSQL cannot store NUL, in text or as an escape in JSON. Half of a surrogate pair has no UTF-8, so no database can
store it. Such a character would fail its batch at every attempt. Does not belong here: the meaning of a text,
and redacting secrets (`redaction.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from typing import Any

import orjson

from kfm_dagster.contracts.identity import rfc3339

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""NUL in JSON; after an odd number of backslashes, the same characters are plain text."""
_LONG_NUMBER = re.compile(r"\d{19}")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
_SCALARS = (bool, int, float, bytes, memoryview)


def parameter(value: Any) -> Any:
    """Encode a parameter: storable text, RFC 3339 times in UTC, lists and mappings as JSON.

    Raises ValueError for a naive time or a time beyond the years 1 to 9999, TypeError for a type that JSON lacks.
    """
    if value is None or isinstance(value, _SCALARS):
        return value
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, date):
        return _plain(value)
    return json_text(list(value) if isinstance(value, Iterator) else value)


def storable(text: str, limit: int | None = None) -> str:
    """Replace characters that no database stores, and cut the text to `limit` characters.

    Each such character becomes U+FFFD, the Unicode standard's replacement (section 5.22).
    """
    if not text.isascii() or "\0" in text:
        text = _UNSTORABLE.sub(_REPLACEMENT, text)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def json_text(value: Any) -> str:
    """Return a value as JSON that both databases store, with sorted names and NaN as null."""
    try:
        text = orjson.dumps(value, default=_plain, option=_OPTIONS).decode()
    except orjson.JSONEncodeError:
        text = orjson.dumps(_storable_value(value), default=_plain, option=_OPTIONS).decode()
    return _ESCAPED_NUL.sub(rf"\1{_REPLACEMENT}", text) if r"\u0000" in text else text


def json_value(text: str) -> Any:
    """Return the value of a JSON text as Python's `json` reads it, mostly by the faster orjson."""
    # orjson reads a whole number beyond 64 bits as a float, and refuses half of a surrogate pair.
    if _LONG_NUMBER.search(text) is None:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    return json.loads(text)


def _plain(value: Any) -> Any:
    """Return a JSON value for a type that orjson does not support."""
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value)
    if isinstance(value, Collection):
        return list(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def _storable_value(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {_storable_value(name): _storable_value(entry) for name, entry in value.items()}
    if isinstance(value, Collection):
        return [_storable_value(entry) for entry in (sorted(value) if isinstance(value, AbstractSet) else value)]
    return value
