"""What never reaches the ledger, whatever text it is wrapped in."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kfm_dagster
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.redaction import MAX_MESSAGE_LENGTH, redact, redacted_error

# The secrets are made up; those of AWS are the documentation's examples.
CASES = {
    "access key id": ("denied for AKIAIOSFODNN7EXAMPLE today", "denied for [redacted] today"),
    "temporary key id": ("key ASIAIOSFODNN7EXAMPLE.", "key [redacted]."),
    "secret by name": (
        "aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY next",
        "aws_secret_access_key=[redacted] next",
    ),
    "bare secret": ("got wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "got [redacted]"),
    "environment": ("AWS_SESSION_TOKEN: IQoJb3JpZ2luX2VjEA", "AWS_SESSION_TOKEN: [redacted]"),
    "authorization header": ("sent Authorization: Bearer abc.def-ghi", "sent Authorization: [redacted]"),
    "signature version 4": (
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20251203, SignedHeaders=host, Signature=fe5f",
        "Authorization: [redacted]",
    ),
    "header in a dict": (
        "{'Authorization': 'Basic dXNlcjpwYXNz', 'Host': 'x'}",
        "{'Authorization: [redacted]",
    ),
    "bearer alone": ("with bearer mF_9.B5f-4.1JqM", "with bearer [redacted]"),
    "json web token": ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig-nature", "token [redacted]"),
    "github token": ("used ghp_16C7e42F292c6912E7710c838347Ae178B4a", "used [redacted]"),
    "dsn": ("postgresql://kfm:s3cr3t@db:5432/kfm refused", "postgresql://[redacted]@db:5432/kfm refused"),
    "dsn with @ in the password": ("postgresql://kfm:p@ss@db/kfm", "postgresql://[redacted]@db/kfm"),
    "dsn keywords": ("host=db password=hunter2 dbname=kfm", "host=db password=[redacted] dbname=kfm"),
    "json": ('{"client_secret": "a b c", "id": 1}', '{"client_secret": [redacted], "id": 1}'),
    "signed url": (
        "GET https://b.s3.amazonaws.com/a/k.nc?X-Amz-Credential=AKIA&X-Amz-Signature=fe5f80 gave 403",
        "GET https://b.s3.amazonaws.com/a/k.nc?[redacted] gave 403",
    ),
    "azure sas": ("https://a.blob.core.windows.net/c/b?sv=2024&sig=abc%3D", "https://a.blob.core.windows.net/c/b?[redacted]"),
    "e-mail": ("ask jane.doe+noaa@mail.noaa.gov for it", "ask [redacted] for it"),
    "private key": (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY----- was read",
        "[redacted] was read",
    ),
    "python trace": (
        'Traceback (most recent call last):\n  File "/srv/kfm/x.py", line 3, in f\n    g()\nOSError: no route to host',
        "OSError: no route to host",
    ),
    "chained trace": (
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 1\n\n'
            "During handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "b.py", line 2\nValueError: two'
        ),
        "ValueError: two",
    ),
    "java trace": (
        "java.io.IOException: reset\n\tat sun.nio.ch.SocketDispatcher.read(SocketDispatcher.java:39)\n\t... 12 more",
        "java.io.IOException: reset",
    ),
    "control characters": ("one\x00two\x1b[31m\nthree", "one two [31m three"),
}  # fmt: skip
KEPT = [
    "missing_object: HTTP 404 for s3://noaa-goes19/ABI-L1b-RadC/2025/337/00/OR_ABI-L1b-RadC-M6C13_G19_s20253370001170.nc",
    "etag_mismatch: announced 9bb58f26192e4ba00f01e2e7b136bbd8, stored 5d41402abc4b2a76b9719d911017c592-12",
    "content sha256 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 differs",
    "time_mismatch: header says 2025-12-03T00:06:24Z, key says 2025-12-03T00:06:25Z",
    "the tokens of the key grammar are product, scene and band; at offset 12 (of 40)",
    "s3://unidata-nexrad-level2/2025/12/03/KTLX/KTLX20251203_000624_V06 is 12 bytes",
]
SECRETS = {
    "AKIAIOSFODNN7EXAMPLE": "AKIAIOSFODNN7",
    "password=hunter2hunter2": "hunter2hunter2",
    "https://h/p?X-Amz-Signature=fe5f80f77d5fa3": "fe5f80f77d5fa3",
    "jane.doe@noaa.gov": "jane.doe",
    "Bearer mF_9.B5f-4.1JqM-xyz": "B5f-4.1JqM",
    "postgresql://kfm:s3cr3t-pass@db/kfm": "s3cr3t-pass",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig-nature": "eyJzdWIiOiIxIn0",
}
"""Texts with a secret, and the part that must not be left of each."""


@pytest.mark.clause("WSM-06")
def test_secrets_people_and_traces_are_taken_out() -> None:
    assert {name: redact(text) for name, (text, _) in CASES.items()} == {
        name: expected for name, (_, expected) in CASES.items()
    }


def test_what_explains_an_error_is_kept() -> None:
    assert [redact(text) for text in KEPT] == KEPT


@pytest.mark.clause("WSM-06")
@given(before=st.text(max_size=600), after=st.text(max_size=600), secret=st.sampled_from([*SECRETS]))
def test_no_surrounding_text_lets_a_secret_through(before: str, after: str, secret: str) -> None:
    found = redact(f"{before} {secret} {after}")
    assert SECRETS[secret] not in found.replace(before, "").replace(after, "")


@pytest.mark.clause("WSM-06")
@given(text=st.text(max_size=3000), limit=st.integers(1, 600))
def test_the_result_is_one_printable_line_within_the_limit(text: str, limit: int) -> None:
    found = redact(text, limit)
    assert len(found) <= limit
    assert found.isprintable()
    assert len(redact(text)) <= MAX_MESSAGE_LENGTH


@pytest.mark.clause("SEC-12")
def test_a_long_text_is_bounded_before_it_is_read() -> None:
    class Counted(str):
        """Counts the characters that are split into lines."""

        __slots__ = ()
        read = 0

        def __getitem__(self, part: Any) -> Counted:
            return Counted(super().__getitem__(part))

        def splitlines(self, keepends: bool = False) -> list[str]:
            Counted.read += len(self)
            return super().splitlines(keepends)

    assert redact(Counted("the disk is full " + "a\n" * 1_000_000)).startswith("the disk is full a a")
    assert Counted.read <= 20_000


@pytest.mark.clause("SEC-12")
def test_of_a_long_trace_the_exception_stays() -> None:
    frames = '  File "/srv/kfm/x.py", line 3, in f\n    g()\n' * 1_000
    assert (
        redact(f"Traceback (most recent call last):\n{frames}OSError: no route to host") == "OSError: no route to host"
    )


PACKAGE = Path(kfm_dagster.__file__).parent
OF_VALUES = {
    *("ValueError", "TypeError", "KeyError", "LookupError", "AttributeError", "ArithmeticError", "OverflowError"),
    *("RecursionError", "UnicodeDecodeError", "JSONDecodeError", "YAMLError", "error", "ClickException"),
}
"""Exceptions of Python, of parsers and of the command line, about a value that was given to them."""
DECODERS = ("readers/",)
"""Rooms without a client: what their libraries raise is about an object's bytes, and redacted where it is stored."""
DOORS = {"error_text", "redacted_error", "redact", "without_secrets"}
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).split("[")[0].rsplit(".", 1)[-1]


@cache
def _own_errors() -> frozenset[str]:
    classes = (node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset(node.name for node in classes if isinstance(node, ast.ClassDef) and node.name.endswith("Error"))


def _foreign(types: ast.expr | None) -> bool:
    named = types.elts if isinstance(types, ast.Tuple) else [] if types is None else [types]
    if isinstance(types, ast.BinOp):
        named = [types.left, types.right]
    return any(_last_name(one) not in _own_errors() | OF_VALUES for one in named)


def _is_own(test: ast.expr, name: str) -> bool:
    """Return whether the test tells that the named exception is one of the package."""
    if not isinstance(test, ast.Call) or not (isinstance(test.args[0], ast.Name) and test.args[0].id == name):
        return False
    return ast.unparse(test.func) == "is_own" or (ast.unparse(test.func) == "isinstance" and not _foreign(test.args[1]))


def _shown(node: ast.AST, name: str) -> Iterator[int]:
    """Yield the lines on which a text of the named exception is made, but for a door or to compare it."""
    if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _last_name(node.func) in {*DOORS, "search"}):
        return
    if isinstance(node, ast.If | ast.IfExp) and _is_own(node.test, name):
        for rest in node.orelse if isinstance(node.orelse, list) else [node.orelse]:
            yield from _shown(rest, name)
        return
    given = {"value"} if isinstance(node, ast.FormattedValue) else set()
    if isinstance(node, ast.Call) and _last_name(node.func) in {"str", "repr", *LOGGING}:
        given = {"args"}
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if field in given and isinstance(child, ast.Name) and child.id == name:
                yield child.lineno
            if isinstance(child, ast.AST):
                yield from _shown(child, name)


def _undoored(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler) and node.name and _foreign(node.type):
            yield from (line for statement in node.body for line in _shown(statement, node.name))
        if isinstance(node, ast.FunctionDef):
            for argument in node.args.args:
                kind = argument.annotation
                if kind and _last_name(kind).endswith(("Exception", "Error")) and _foreign(kind):
                    yield from (line for statement in node.body for line in _shown(statement, argument.arg))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGGING:
            traces = {one.arg: one.value for one in node.keywords}.get("exc_info")
            if (node.func.attr == "exception" and traces is None) or isinstance(traces, ast.Constant):
                yield node.lineno


@pytest.mark.clause("SEC-14")
def test_the_text_of_a_foreign_exception_goes_through_the_door() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if not path.relative_to(PACKAGE).as_posix().startswith(DECODERS)]
    found = {path.relative_to(PACKAGE).as_posix(): sorted({*_undoored(path)}) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.clause("SEC-14")
def test_an_error_is_shown_with_its_causes_redacted_and_its_traceback() -> None:
    # Given to the function: a traceback shows its lines.
    secrets = ["s3cr3t-pass", "hunter2hunter2"]

    def refuses(secret: str) -> None:
        raise OSError(f"no answer of postgresql://kfm:{secret}@db/kfm")

    def fails(first: str, second: str) -> None:
        try:
            try:
                refuses(first)
            except OSError as error:
                raise DatabaseUnavailableError(next_step="wait") from error
        except DatabaseUnavailableError:
            raise RuntimeError(f"with password={second}")  # noqa: B904 - a context is shown as a cause is

    with pytest.raises(RuntimeError) as raised:
        fails(*secrets)
    text = "".join(traceback.format_exception(redacted_error(raised.value)))
    assert [secret for secret in secrets if secret in text] == []
    shown = ("RuntimeError", "DatabaseUnavailableError", "OSError", "in refuses")
    assert [name for name in shown if name not in text] == []
