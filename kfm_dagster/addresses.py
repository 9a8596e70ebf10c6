"""Addresses as they are shown: the location of a database or store, without secrets.

Belongs here: which parts of a DSN or URL are hidden. Does not belong here: credentials in texts of foreign software
(`redaction.py`).
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN: Final = "***"
LAKEFS: Final = re.compile(
    r"lakefs://(?P<repository>[a-z0-9][a-z0-9-]{2,62})/(?P<branch>\w[\w-]{0,255})(/_run_state)?/?", re.ASCII
)
"""The address of a lakeFS branch, or of run-state's folder in the branch. Repository names follow lakeFS's concepts
page. A branch must not contain a slash, because the part after the slash would be read as a folder."""

_HARMLESS: Final = frozenset(
    {
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "gssencmode", "host",
        "hostaddr", "keepalives", "mode", "port", "sslmode", "target_session_attrs", "uri", "user",
    }
)  # fmt: skip
"""Options without secrets, which name the server and the form of a connection (libpq, section 34.1.2; SQLite's URI file
names). The values of all other options, known or unknown, are hidden."""


def shown(address: str) -> str:
    """Return an address for display; `***` replaces the password and options that may be secret."""
    if "://" not in address:
        return address
    try:
        parts = urlsplit(address)
    except ValueError:
        return HIDDEN
    account, at, place = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    text = f"{parts.scheme}://{user}{colon and f':{HIDDEN}'}{at}{place}{parts.path}"
    if parts.query:
        text += "?" + "&".join(map(_option, parts.query.split("&")))
    return text + (f"#{HIDDEN}" if parts.fragment else "")


def without_secrets(text: str, address: str) -> str:
    """Return a driver's text about an address, without the secrets of the address."""
    for secret in sorted(_secrets(address), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _option(option: str) -> str:
    name, separator, _ = option.partition("=")
    return option if name.lower() in _HARMLESS else f"{name}{separator}{HIDDEN}"


def _secrets(address: str) -> set[str]:
    """Return the secrets that `shown` hides: each as it is written, and percent-decoded."""
    if "://" not in address:
        return set()
    try:
        parts = urlsplit(address)
    except ValueError:
        return {address}
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    options = [option.partition("=") for option in parts.query.split("&")]
    raw = {password, parts.fragment, *(value for name, _, value in options if name.lower() not in _HARMLESS)}
    decoded = {value for name, value in parse_qsl(parts.query) if name.lower() not in _HARMLESS}
    return {secret for secret in raw | decoded | {unquote(text) for text in raw} if secret}
