"""Redaction: the ledger and screens have no secrets, and the cost of any text is bounded."""

from __future__ import annotations

import ast
import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.resources import WalResource
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError
from kfm_dagster.ingest.evidence_bundle import redacted
from kfm_dagster.notifications import fields
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.redaction import MAX_MESSAGE_LENGTH, error_text, redact, redacted_error
from kfm_dagster.settings import Settings, environment
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.text import json_text, json_value, storable
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.integration.chain import StoredObject, announce, volumes
from kfm_dagster_tests.sources import trees

# The secrets are invented; those of AWS are the documentation's examples.
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
"""Texts with a secret, and the part that must be removed."""


@pytest.mark.clause("WSM-06")
def test_secrets_email_addresses_and_traces_are_removed() -> None:
    assert {name: redact(text) for name, (text, _) in CASES.items()} == {
        name: expected for name, (_, expected) in CASES.items()
    }


def test_the_explanation_of_an_error_is_kept() -> None:
    assert [redact(text) for text in KEPT] == KEPT


@pytest.mark.clause("WSM-06")
@given(before=st.text(max_size=600), after=st.text(max_size=600), secret=st.sampled_from([*SECRETS]))
def test_a_secret_is_removed_from_any_surrounding_text(before: str, after: str, secret: str) -> None:
    redacted = redact(f"{before} {secret} {after}")
    assert SECRETS[secret] not in redacted.replace(before, "").replace(after, "")


@pytest.mark.clause("WSM-06")
@given(text=st.text(max_size=3000), limit=st.integers(1, 600))
def test_the_result_is_one_printable_line_within_the_limit(text: str, limit: int) -> None:
    redacted = redact(text, limit)
    assert len(redacted) <= limit
    assert redacted.isprintable()
    assert len(redact(text)) <= MAX_MESSAGE_LENGTH


@pytest.mark.clause("SEC-12")
def test_a_long_text_is_truncated_before_it_is_split_into_lines() -> None:
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
def test_a_long_trace_keeps_its_exception() -> None:
    frames = '  File "/srv/kfm/x.py", line 3, in f\n    g()\n' * 1_000
    assert (
        redact(f"Traceback (most recent call last):\n{frames}OSError: no route to host") == "OSError: no route to host"
    )


OF_VALUES = {
    *("ValueError", "TypeError", "KeyError", "LookupError", "AttributeError", "ArithmeticError", "OverflowError"),
    *("RecursionError", "UnicodeDecodeError", "JSONDecodeError", "YAMLError", "error", "ClickException"),
}
"""Exceptions of Python, parsers and the command line about a passed value; they need no redaction."""
DECODERS = ("readers/",)
"""Folders that call no service: their errors describe an object's bytes, and are redacted when stored."""
SAFE = {"error_text", "redacted_error", "redact", "without_secrets"}
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).split("[")[0].rsplit(".", 1)[-1]


@cache
def _own_errors() -> frozenset[str]:
    classes = (node for tree in trees().values() for node in ast.walk(tree))
    return frozenset(node.name for node in classes if isinstance(node, ast.ClassDef) and node.name.endswith("Error"))


def _foreign(types: ast.expr | None) -> bool:
    named = types.elts if isinstance(types, ast.Tuple) else [] if types is None else [types]
    if isinstance(types, ast.BinOp):
        named = [types.left, types.right]
    return any(_last_name(error) not in _own_errors() | OF_VALUES for error in named)


def _is_own(test: ast.expr, name: str) -> bool:
    """Return whether the condition restricts the named exception to exceptions of the package."""
    if not isinstance(test, ast.Call) or not (isinstance(test.args[0], ast.Name) and test.args[0].id == name):
        return False
    return ast.unparse(test.func) == "is_own" or (ast.unparse(test.func) == "isinstance" and not _foreign(test.args[1]))


def _shown(node: ast.AST, name: str) -> Iterator[int]:
    """Yield the lines where the named exception becomes text, unless redacted or compared."""
    if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and _last_name(node.func) in {*SAFE, "search"}):
        return
    if isinstance(node, ast.If | ast.IfExp) and _is_own(node.test, name):
        for rest in node.orelse if isinstance(node.orelse, list) else [node.orelse]:
            yield from _shown(rest, name)
        return
    attributes = {"value"} if isinstance(node, ast.FormattedValue) else set()
    if isinstance(node, ast.Call) and _last_name(node.func) in {"str", "repr", *LOGGING}:
        attributes = {"args"}
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if field in attributes and isinstance(child, ast.Name) and child.id == name:
                yield child.lineno
            if isinstance(child, ast.AST):
                yield from _shown(child, name)


def _unredacted(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name and _foreign(node.type):
            yield from (line for statement in node.body for line in _shown(statement, node.name))
        if isinstance(node, ast.FunctionDef):
            for argument in node.args.args:
                kind = argument.annotation
                if kind and _last_name(kind).endswith(("Exception", "Error")) and _foreign(kind):
                    yield from (line for statement in node.body for line in _shown(statement, argument.arg))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGGING:
            traces = {keyword.arg: keyword.value for keyword in node.keywords}.get("exc_info")
            if (node.func.attr == "exception" and traces is None) or isinstance(traces, ast.Constant):
                yield node.lineno


@pytest.mark.clause("SEC-14")
def test_the_text_of_a_foreign_exception_is_redacted() -> None:
    unredacted = {path: sorted({*_unredacted(tree)}) for path, tree in trees().items() if not path.startswith(DECODERS)}
    assert {path: lines for path, lines in unredacted.items() if lines} == {}


@pytest.mark.clause("SEC-14")
def test_an_error_is_shown_with_its_causes_redacted_and_its_traceback() -> None:
    # The secrets are passed as arguments, because a traceback shows the source lines.
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


SECRET = "tr0ub4dor"
DSNS = [
    f"postgresql+psycopg2://kfm:{SECRET}@127.0.0.1:1/kfm",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?password={SECRET}",
    f"postgresql+psycopg2://127.0.0.1:1/kfm?user=kfm&sslmode=prefer&sslpassword={SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?passfile=/{SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?PASSWORD={SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?options=-c%20x.y%3D{SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?not_an_option={SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?sslmode=prefer#{SECRET}",
]


@pytest.mark.clause("SEC-07")
def test_an_address_is_shown_without_credentials() -> None:
    for address, expected in (
        ("postgresql+psycopg2://u:p@h:5432/d", "postgresql+psycopg2://u:***@h:5432/d"),
        (
            "postgresql+psycopg2://u@h/d?host=/run/pg&password=p",
            "postgresql+psycopg2://u@h/d?host=/run/pg&password=***",
        ),
        ("postgresql://h/d?sslpassword=p&sslmode=require&x", "postgresql://h/d?sslpassword=***&sslmode=require&x***"),
        ("delta+s3://k:p@bucket/prefix", "delta+s3://k:***@bucket/prefix"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("sqlite:////data/kfm.db", "sqlite:////data/kfm.db"),
        ("/data/a?b@c:d", "/data/a?b@c:d"),
        ("http://[::1", "***"),
    ):
        assert shown(address) == expected
    # One of the secrets ends with the other.
    assert without_secrets("p, a-p", "postgresql://u:p@h/d?password=a-p") == "***, ***"


@pytest.mark.clause("SEC-07")
@given(
    secret=st.text(st.characters(codec="utf-8"), min_size=6, max_size=30),
    name=st.sampled_from(["password", "sslpassword", "passfile", "sslkey", "whatever"]),
)
@example(secret="a@b:c/d?e", name="password")
def test_no_secret_is_shown_whatever_its_characters(secret: str, name: str) -> None:
    encoded = quote(secret, safe="")
    for address in (
        f"postgresql+psycopg2://kfm:{encoded}@host/db",
        f"postgresql+psycopg2://kfm@host/db?sslmode=require&{name}={encoded}&application_name=kfm",
    ):
        message = f"could not open {secret!s} ({encoded}) of {address}"
        for text in (shown(address), without_secrets(message, address)):
            assert encoded not in text.removeprefix("could not open").replace("kfm", "")
        assert f" {secret} (" not in without_secrets(message, address)


@pytest.mark.clause("SEC-07")
@pytest.mark.parametrize("dsn", DSNS)
def test_an_unreachable_database_s_error_shows_no_secret(
    dsn: str, call: Call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(DatabaseUnavailableError) as refused:
        Database.open(dsn)
    monkeypatch.setenv("KFM_WAL_DSN", dsn)
    answer = call("wal", "list", "--json")
    texts = [str(refused.value), repr(refused.value), answer.out, answer.err, repr(Settings.load()), caplog.text]
    assert "127.0.0.1" in texts[0]
    assert [text for text in texts if SECRET in text] == []


@pytest.mark.clause("SEC-07")
def test_credentials_in_the_address_of_a_store_are_refused_and_not_shown() -> None:
    addresses = (f"s3://key:{SECRET}@bucket/x", f"s3://bucket/x?secret_access_key={SECRET}")
    names = ("KFM_RUN_STATE", "KFM_STORAGE_URL", "KFM_CATALOG_URL", "KFM_LINEAGE_URL")
    of_run_state = [form for address in addresses for form in (f"delta+{address}", f"s3://a,{address}")]
    for name, value in (*product(names, addresses), *product(names[:1], of_run_state)):
        refusal = rf"{name} is wrong; observed a value that is not shown"
        with environment({name: value}), pytest.raises(ConfigurationError, match=refusal) as refused:
            Settings.load()
        assert SECRET not in str(refused.value)


@pytest.mark.clause("SEC-07")
def test_dagster_shows_no_dsn_of_the_resource_even_if_a_wrong_dsn_is_refused() -> None:
    resource = WalResource(dsn=DSNS[1])
    assert SECRET not in repr(resource)
    schema = resource.get_resource_definition().config_schema.as_field().config_type
    assert schema.fields["dsn"].is_secret
    with pytest.raises(ConfigurationError, match="not shown") as refused:
        WalResource(dsn=f"mysql://kfm:{SECRET}@host/db").settings()
    assert SECRET not in str(refused.value)


SHORT, FACTOR = 1_250, 8
"""Length of the short text, and how many times longer the long text is; quadratic work would take 64 times as long."""
ALLOWED, NOISE_SECONDS = 24, 0.010
"""The long text may take ALLOWED times as long as the short one, plus the time of a garbage collection."""
TRIES, TRIES_OF_LONG = 4, 40
"""The fastest of TRIES counts, and one of TRIES_OF_LONG must be fast: other processes disturb the measurement."""

PIECES = [
    *("-a", "a.", "a-", "a=", "a@", "a@b", "a@b.c_", "@a.", "a:", "://a", "a://", "a://b?", "?a://", "b:/", ".//@"),
    *("x-amz-", "x-goog-", "x-amz-a=", "token", "token-", "token ", "token=", "secret_", 'pwd="', "sig='", "a_token:"),
    *("eyJ-", "eyJaaaaa", "eyJaaaaa.", "AKIA", "ghp_", "Aa1", "Aa1/", "AWS4-HMAC-SHA256", "basic ", "authorization "),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY ", "-----END ", 'File "", line ', 'File "", line 1\n', "at a(", "... 1\n"),
    *("\\", "\\\\u0000", '\\"', '"', "'", "[", "{", '{"a":'),
    *("%", "%2", "+", "/", "\n", " ", "\x00", "\ud800", "é", "1"),
]
"""A text repeats one of these pieces: beginnings and delimiters of the rules' patterns."""

Reader = Callable[[str], Any]
REGISTRY = ContractRegistry.load()


def _parsed(text: str, *, field: str) -> Any:
    [item], text = volumes(1), storable(text)
    if field == "key":
        item = StoredObject(bucket=item.bucket, key=text, stored=b"", announced=b"")
    message = announce([item.event()], registry=REGISTRY)
    body = json.loads(message.body)
    if field in body:
        body[field] = text
    body = text if field == "body" else json.dumps(body)
    return parse_message(SqsMessage(message_id="m", body=body), registry=REGISTRY, queue="q")


def _value(text: str) -> Any:
    try:
        return json_value(text)
    except (ValueError, RecursionError):
        return None


READERS: dict[str, Reader] = {
    "redact": redact,
    "error_text": lambda text: error_text(ValueError(text)),
    "redact the end of a trace": lambda text: redact(f"Traceback (most recent call last)\n{text}"),
    "redacted": redacted,
    "redacted names": lambda text: redacted({text: text}),
    "redacted JSON in JSON": lambda text: redacted(json.dumps({"Message": json.dumps({"Records": [text] * 3})})),
    "storable": storable,
    "json_text": lambda text: json_text({text: [text]}),
    "json_value": _value,
    "json_value of a text": lambda text: json_value(json.dumps(text)),
    "shown address": lambda text: shown(f"s3://{text}"),
    "without_secrets": lambda text: without_secrets(text, "postgresql://u:a-a@h/d?password=a"),
    "shown field": fields.shown,
    **{
        f"parsed {field}": partial(_parsed, field=field)
        for field in ("body", "key", "Message", "TopicArn", "Timestamp", "Type", "MessageId")
    },
}


def seconds(read: Reader, text: str) -> float:
    before = time.process_time()
    read(text)
    return time.process_time() - before


def grows_with_length(read: Reader, piece: str) -> bool:
    short, long = ((piece * (size // len(piece) + 1))[:size] for size in (SHORT, SHORT * FACTOR))
    least = min(seconds(read, short) for _ in range(TRIES))
    return any(seconds(read, long) <= ALLOWED * least + NOISE_SECONDS for _ in range(TRIES_OF_LONG))


@pytest.mark.clause("SEC-12")
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_the_time_to_read_grows_linearly_with_the_length(read: Reader) -> None:
    assert [piece for piece in PIECES if not grows_with_length(read, piece)] == []


@pytest.mark.clause("SEC-12")
@given(piece=st.lists(st.sampled_from(PIECES), min_size=2, max_size=3).map("".join))
@settings(max_examples=20, deadline=None)
@example(piece="-a")
def test_the_time_to_redact_grows_linearly_with_the_length(piece: str) -> None:
    assert grows_with_length(redact, piece)
