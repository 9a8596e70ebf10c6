"""Redaction: texts of foreign software without credentials, personal data and stack traces.

Every text of a foreign exception or answer passes through here before it reaches the database, a log, Dagster or a
page. The time of each rule is linear in the length of the text. For this, a match can begin only at the first of
several characters that its pattern accepts, and possessive quantifiers prevent that a failed match reads characters
again. Does not belong here: which errors are stored, and addresses of our own settings (`addresses.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MAX_MESSAGE_LENGTH: Final = 500
"""Characters; the ledger's CHECK constraint refuses more."""

_MARK = "[redacted]"
_LONGEST = 20_000
"""Characters examined: forty times the kept length, so that text remains when a long token is removed."""

_KEYS = [f"{kind}{gap}key" for kind in ("secret", "access", "api", "account", "private") for gap in ("", "_", "-")]
_SENSITIVE_ENDS = "|".join(
    f"(?<={name})"
    for name in (
        *("token", "secret", *_KEYS, "access_key_id", "access-key-id", "accesskeyid", "password", "passwd"),
        *("passphrase", "pwd", "credential", "credentials", "signature", "sig", "cookie"),
    )
)
_SENSITIVE_NAME = rf"(?>[\w-]*?x-(?:amz|goog)-)[\w-]++|[\w-]++(?:{_SENSITIVE_ENDS})"
_TRACE = "Traceback (most recent call last)"


def _if_tail(replacement: str) -> Callable[[re.Match[str]], str]:
    """Return a substitution for matches with a second group; other matches stay unchanged."""
    return lambda match: match[0] if match[2] is None else match.expand(replacement)


_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # PEM blocks, whole or cut off.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), _MARK),
    # An Authorization header may hold commas and blanks (AWS Signature Version 4), so the rest of the text is removed.
    (re.compile(r"\b((?:proxy-)?authorization)\b[\"']?\s*[:=].*$", re.IGNORECASE), rf"\1: {_MARK}"),
    (re.compile(r"\bAWS4-HMAC-SHA256\b.*$"), _MARK),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {_MARK}"),
    # User and password in a URL or DSN; the password may hold an unescaped @.
    (re.compile(r"(?<=[a-z0-9+.-])://[^\s/?#]*@", re.IGNORECASE), rf"://{_MARK}@"),
    # Any query string of a URL: signed URLs of AWS, Google and Azure carry their secret there.
    (re.compile(r"(://[^\s?\"'<>]*+)(\?[^\s\"'<>]*+)?"), _if_tail(rf"\1?{_MARK}")),
    # name=value and "name": "value"; quoted values may hold blanks.
    (
        re.compile(
            rf"(?<![\w-])({_SENSITIVE_NAME})([\"']?\s*[:=]\s*)(?:\"[^\"]*\"?|'[^']*'?|[^\s\"',;&}})]+)", re.IGNORECASE
        ),
        rf"\1\2{_MARK}",
    ),
    # AWS access key ids and other unique ids (IAM user guide, "Unique identifiers").
    (re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AIPA|ANPA|ANVA|APKA|AROA|ASCA)[A-Z0-9]{12,}"), _MARK),
    # JSON Web Tokens, whole or cut off; GitHub and Slack tokens.
    (re.compile(r"\beyJ[\w-]{5,}+(?:\.[\w-]*+){0,2}"), _MARK),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|xox[abeprs]-|glpat-)[\w-]{10,}"), _MARK),
    # Bare secret access keys: forty base64 characters with small letters, capitals and digits. Hexadecimal digests and
    # paths of small letters do not match, because they have no capitals.
    (
        re.compile(
            r"(?<![\w/+=.-])(?=[A-Za-z0-9/+]*[a-z])(?=[A-Za-z0-9/+]*[A-Z])(?=[A-Za-z0-9/+]*[0-9])"
            r"[A-Za-z0-9/+]{40}(?![\w/+=.-])"
        ),
        _MARK,
    ),
    # Session tokens and the like: 100 or more characters of base64, longer than any name that a person would choose.
    (re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{100,}"), _MARK),
    (re.compile(r"([\w.!#$%&'*+/=?^`{|}~-]++)(@[A-Za-z0-9-]++(?:\.[A-Za-z0-9-]++)++)?"), _if_tail(_MARK)),
)

_FRAME = re.compile(
    r"^\s*(?:Traceback \(most recent call last\)|File \".*\", line \d+|at [\w$.<>]+\(.*\)|\.\.\. \d+ more)"
)
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def redact(text: str, limit: int = MAX_MESSAGE_LENGTH) -> str:
    """Return a line of at most `limit` characters without credentials and stack traces.

    E-mail addresses are removed. Of a stack trace, the last line remains, which names the exception. `[redacted]`
    replaces a removed text.
    """
    line = _one_line(_bounded(text))
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def error_text(error: BaseException, limit: int = MAX_MESSAGE_LENGTH) -> str:
    """Return the class and the text of an exception, redacted."""
    return redact(f"{type(error).__name__}: {error}", limit)


class ForeignError(Exception):
    """Replaces a foreign exception; its text is that exception's class and redacted text."""


def is_own(error: BaseException) -> bool:
    """Return whether the package defines the error's class; if so, its text is redacted already."""
    return type(error).__module__.startswith("kfm_dagster.")


def redacted_error(error: BaseException) -> BaseException:
    """Return a redacted exception, with causes and tracebacks, to raise or log instead.

    Causes are redacted, too, because logs and Dagster's events contain their texts. An error of the package is kept.
    """
    cause = error.__context__ if error.__cause__ is None and not error.__suppress_context__ else error.__cause__
    shown = error if is_own(error) else ForeignError(error_text(error)).with_traceback(error.__traceback__)
    shown.__cause__ = None if cause is None else redacted_error(cause)
    return shown


def _bounded(text: str) -> str:
    """Return the beginning of a long text, or the last lines of a long stack trace."""
    if len(text) <= _LONGEST:
        return text
    if _TRACE in text[:_LONGEST]:
        _, newline, end = text[-_LONGEST:].partition("\n")
        if newline:
            return f"{_TRACE}:\n{end}"
    return text[:_LONGEST]


def _one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if any(line.lstrip().startswith(_TRACE) for line in lines):
        lines = lines[-1:]
    kept = [line for line in lines if not _FRAME.match(line) and not line.startswith(_CHAINED)]
    joined = " ".join(kept)
    return " ".join("".join(char if char.isprintable() else " " for char in joined).split())
