"""Redaction: what may stand in the ledger of a text that somebody else's software wrote.

Belongs here: taking credentials, personal data and stack traces out of error messages, and bounding their length.
Does not belong here: deciding which errors are kept.
"""

from __future__ import annotations

import re
from typing import Final

MAX_MESSAGE_LENGTH: Final = 500
"""Characters; the ledger's CHECK constraint refuses more."""

_MARK = "[redacted]"
_LONGEST_LINE = 20_000
"""Characters looked at; forty times what is kept, so that removing a long token still leaves the rest."""

_SENSITIVE_NAMES = (
    r"(?:x-amz-[\w-]+|x-goog-[\w-]+|aws_?secret_?access_?key|aws_?access_?key_?id|aws_?session_?token|"
    r"access_?token|refresh_?token|id_?token|auth_?token|security_?token|session_?token|token|"
    r"client_?secret|secret_?key|secret|api[-_]?key|account_?key|shared_?access_?key|private_?key|"
    r"password|passwd|passphrase|pwd|credentials?|signature|sig|cookie|set-cookie)"
)

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # PEM blocks, whole or cut off.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), _MARK),
    # An Authorization header may hold commas and blanks (AWS Signature Version 4), so it goes to the end of the text.
    (re.compile(r"\b((?:proxy-)?authorization)\b[\"']?\s*[:=].*$", re.IGNORECASE), rf"\1: {_MARK}"),
    (re.compile(r"\bAWS4-HMAC-SHA256\b.*$"), _MARK),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {_MARK}"),
    # User and password in a URL or DSN; the password may hold an unescaped @.
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/?#]*@", re.IGNORECASE), rf"\1{_MARK}@"),
    # Any query string of a URL: signed URLs of AWS, Google and Azure carry their secret there.
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?\"'<>]*)\?[^\s\"'<>]*", re.IGNORECASE), rf"\1?{_MARK}"),
    # name=value and "name": "value"; quoted values may hold blanks.
    (
        re.compile(
            rf"(?<![A-Za-z0-9])([\w-]*{_SENSITIVE_NAMES})([\"']?\s*[:=]\s*)(?:\"[^\"]*\"?|'[^']*'?|[^\s\"',;&}})]+)",
            re.IGNORECASE,
        ),
        rf"\1\2{_MARK}",
    ),
    # AWS access key ids and other unique ids (IAM user guide, "Unique identifiers").
    (re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AIPA|ANPA|ANVA|APKA|AROA|ASCA)[A-Z0-9]{12,}"), _MARK),
    # JSON Web Tokens, GitHub and Slack tokens.
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?"), _MARK),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|xox[abeprs]-|glpat-)[\w-]{10,}"), _MARK),
    # Bare secret access keys: forty base64 characters, no hexadecimal digest and no path of small letters.
    (
        re.compile(
            r"(?<![\w/+=.-])(?=[A-Za-z0-9/+]*[a-z])(?=[A-Za-z0-9/+]*[A-Z])(?=[A-Za-z0-9/+]*[0-9])"
            r"[A-Za-z0-9/+]{40}(?![\w/+=.-])"
        ),
        _MARK,
    ),
    # Session tokens and the like: base64 far longer than any name that a person chose.
    (re.compile(r"[A-Za-z0-9+/=_-]{100,}"), _MARK),
    (re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"), _MARK),
)

_FRAME = re.compile(
    r"^\s*(?:Traceback \(most recent call last\)|File \".*\", line \d+|at [\w$.<>]+\(.*\)|\.\.\. \d+ more)"
)
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def redact(text: str, limit: int = MAX_MESSAGE_LENGTH) -> str:
    """Return one line of at most `limit` characters without credentials, e-mail addresses or a stack trace.

    Of a stack trace the last line stays, which names the exception. What was taken out shows as `[redacted]`.
    """
    line = _one_line(text)[:_LONGEST_LINE]
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if any(line.lstrip().startswith("Traceback (most recent call last)") for line in lines):
        lines = lines[-1:]
    kept = [line for line in lines if not _FRAME.match(line) and not line.startswith(_CHAINED)]
    joined = " ".join(kept)
    return " ".join("".join(char if char.isprintable() else " " for char in joined).split())
