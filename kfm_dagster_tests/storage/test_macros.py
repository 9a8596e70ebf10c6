"""The macros of the SQL texts: what they stand for, and what is refused."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.resources.abc import Traversable

import pytest

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.storage import macros
from kfm_dagster.storage.statements import sql_root


def test_a_macro_stands_for_the_database_s_text() -> None:
    for text, sqlite, postgresql in [
        ("at @time NOT NULL", "at text NOT NULL", "at timestamptz NOT NULL"),
        ("x = @json_type(@as_json(y))", "x = json_type(y)", "x = jsonb_typeof(CAST(y AS jsonb))"),
        ("@pairs(n, a, b)", "'a', n.a, 'b', n.b", "'a', n.a, 'b', n.b"),
        ("@changed(a)", "(NEW.a) IS DISTINCT FROM (OLD.a)", "(NEW.a) IS DISTINCT FROM (OLD.a)"),
        ("a @sqlite(b, (c, ')'))", "a b, (c, ')')", "a "),
        ("'@time' -- @time it's", "'@time' -- @time it's", "'@time' -- @time it's"),
    ]:
        assert (macros.render(text, "sqlite"), macros.render(text, "postgresql")) == (sqlite, postgresql)


def test_a_macro_that_is_wrong_is_refused() -> None:
    for text, why in [("x @tmie", "unknown SQL macro"), ("@sha256(x", "is not closed")]:
        with pytest.raises(ConfigurationError, match=why):
            macros.render(text, "sqlite")


def test_a_statement_is_of_one_database_where_a_reason_says_so() -> None:
    text = "SELECT 1;\n\n-- sqlite: it has no locks.\nSELECT 2;\nBEGIN\n    SELECT 3;\nEND;\n-- The end.\n"
    assert macros.statements(text, "postgresql") == ["SELECT 1", "BEGIN\n    SELECT 3;\nEND"]
    assert macros.statements(text, "sqlite") == [
        "SELECT 1", "-- sqlite: it has no locks.\nSELECT 2", "BEGIN\n    SELECT 3;\nEND",
    ]  # fmt: skip


def test_a_statement_with_two_forms_has_the_reason_of_each() -> None:
    for file in _files("queries"):
        text = file.read_text(encoding="utf-8")
        forms = defaultdict(list)
        for name, first in re.findall(r"^-- name: (\w+)\n(.*)$", text, re.MULTILINE):
            forms[name].append(re.match(r"-- (sqlite|postgresql): (?=.{20})", first))
        for name, found in forms.items():
            of_one = [match[1] for match in found if match]
            assert of_one in ([], ["sqlite", "postgresql"]), f"{file.name}: {name}"
            assert len(found) == max(1, len(of_one)), f"{file.name}: {name}"


def test_what_is_of_one_database_says_why() -> None:
    for file in (*_files("schema"), *_files("queries")):
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"^-- (?:sqlite|postgresql):?(?: .{0,20})?$", text, re.MULTILINE | re.IGNORECASE) == []


def test_every_macro_is_documented_and_used() -> None:
    documented = set(re.findall(r"`@(\w+)", str(macros.__doc__))) - {"name"}
    texts = "\n".join(file.read_text(encoding="utf-8") for file in (*_files("schema"), *_files("queries")))
    used = set(re.findall(r"(?<![\w'])@([a-z_0-9]+)", texts)) - {"macro"}
    assert documented == used


def _files(folder: str) -> list[Traversable]:
    return [file for file in (sql_root() / folder).iterdir() if file.name.endswith(".sql")]
