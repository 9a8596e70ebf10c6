"""The macros of `sql/`: with them, a single text serves SQLite and PostgreSQL.

A macro is `@name` or `@name(argument, ...)`; arguments may contain macros. A macro becomes text, never a value,
because values are bound. A comment `-- sqlite: reason` or `-- postgresql: reason` restricts a statement to a database.

| macro | text |
|---|---|
| `@id`, `@bytewise(t)` | type of a text column, or text t, compared byte by byte in any locale |
| `@time`, `@json`, `@bytes`, `@bool`, `@bigint`, `@real`, `@uuid` | types of columns |
| `@serial(c)`, `@bigserial(c)` | a primary key (constraint c) of numbers that the database assigns |
| `@strict`, `@without_rowid` | the end of a table; without row ids SQLite stores the rows in the key's order |
| `@now`, `@days_before(t, n)` | the time now; n days before t |
| `@utc_day(t)`, `@utc_hour(t)`, `@utc_text(t)` | the day of t as text, its hour as a number, all of it as text |
| `@seconds(t, u)` | whole seconds from u to t |
| `@latest(t, u)` | the later of two times, both not null |
| `@position(t, u)` | the position, from 1, at which t contains text u; 0 if t lacks u |
| `@json_type(j)`, `@json_size(j)` | type (`object`, `array`, ...); number of an array's members |
| `@json_object('a', x, ...)`, `@without(j, 'a')` | an object of JSON; object j without its member a |
| `@as_json(t)`, `@as_time(t)` | text cast to JSON, to a time |
| `@has(j, t)` | whether JSON list j has text t |
| `@holds(j, k)` | whether JSON object j has every member of k, whose values are texts |
| `@each(:p)`, `@each(:p, bigint)` | a query of the values of a JSON list, a batch of texts or of numbers |
| `@batch(:p, b, a type, ...)` | the relation b, with column a, ..., of a JSON list of objects; types: text, time, ... |
| `@rows(:p, b)` | the relation b of a JSON list of lists; each list is `b.value` |
| `@in_order(a, ...)` | ORDER BY bytes, so that overlapping batches lock in the same order and cannot |
| | deadlock; empty in SQLite, which has one writer |
| `@lock(FOR ...)` | a lock on the rows that a query reads; empty in SQLite, which locks the database |
| `@locked(t, key, FOR ..., c)` | condition c; first locks the rows that meet c, in the order of their key |
| `@lock_all('name')` | the statement that serialises transactions |
| `@indexed_by(i)` | the index that SQLite must use, because its planner chooses another without statistics |
| `@unless_there(t, b, key, ...)` | in SQLite the condition that t has no row with b's key, because triggers would |
| | refuse such a row before ON CONFLICT skips it; always true in PostgreSQL |
| `@returned(r.a, ...)` | the list after RETURNING; in SQLite without names of relations |
| `@sha256(t)`, `@hexadecimal(t)`, `@word(t)`, `@is_day(t)`, `@rfc3339(t)` | CHECK that t is null or has this form |
| `@sqlite(...)` | a part of a statement only for SQLite; a comment has the reason |
| `@pairs(r, a, ...)` | `'a', r.a, ...` for an object of JSON |
| `@changed(a, ...)` | whether an update changes one of these columns |
| `@refuse(trigger, EVENT ON t, rule, when, ...)` | a trigger that refuses rows that meet all conditions. The |
| | error text is the rule; if the rule is `name: c: s` with columns c and s, it is `name: value of c: old s > new s` |
| `@after(trigger, EVENT ON t, when, statement)` | a trigger that runs the statement after a row's event |
| `@kept(t, rule, (key), ...)` | no row is deleted, or replaced by a row with the same key |
| `@append_only(t, rule, (key), ...)` | as `@kept`, and no row is changed |
| `@not_replaced(t, rule, (key), ...)`, `@not_truncated(t, rule)` | only these parts of `@kept` |
| `@not_repeated(t, (key))` | as `@not_replaced`, but a repeated row is skipped silently |

Why not a library: see ADR 022. Does not belong here: the statements themselves (`statements.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from kfm_dagster.errors import ConfigurationError

_TEXTS = {  # SQLite's, PostgreSQL's
    "id": ("text", 'text COLLATE "C"'),
    "time": ("text", "timestamptz"),
    "json": ("text", "jsonb"),
    "bytes": ("blob", "bytea"),
    "bool": ("integer", "boolean"),
    "bigint": ("integer", "bigint"),
    "real": ("real", "double precision"),
    "uuid": ("text", "uuid"),
    "serial": (
        "integer CONSTRAINT $1 PRIMARY KEY AUTOINCREMENT",
        "bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT $1 PRIMARY KEY",
    ),
    "bigserial": ("integer CONSTRAINT $1 PRIMARY KEY AUTOINCREMENT", "bigserial CONSTRAINT $1 PRIMARY KEY"),
    "strict": ("STRICT", ""),
    "without_rowid": ("STRICT, WITHOUT ROWID", ""),
    "now": ("(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))", "now()"),
    "days_before": ("strftime('%Y-%m-%dT%H:%M:%fZ', $1, '-$2 days')", "$1 - interval '$2 days'"),
    "utc_hour": ("CAST(substr($1, 12, 2) AS integer)", "CAST(extract(HOUR FROM $1 AT TIME ZONE 'UTC') AS integer)"),
    "utc_text": ("$1", """to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""),
    "seconds": (
        "CAST(round((julianday($1) - julianday($2)) * 86400) AS integer)",
        "CAST(round(extract(EPOCH FROM $1 - $2)) AS integer)",
    ),
    "latest": ("max($*)", "greatest($*)"),
    "position": ("instr($1, $2)", "strpos($1, $2)"),
    "bytewise": ("$1", '($1) COLLATE "C"'),
    "utc_day": ("substr($1, 1, 10)", "to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD')"),
    "json_type": ("json_type($1)", "jsonb_typeof($1)"),
    "json_object": ("json_object($*)", "jsonb_build_object($*)"),
    "without": ("json_remove($1, '$.' || $2)", "($1 - $2)"),
    "json_size": ("json_array_length($1)", "jsonb_array_length($1)"),
    "as_json": ("$1", "CAST($1 AS jsonb)"),
    "sha256": ("length($1) = 64 AND $1 NOT GLOB '*[^0-9a-f]*'", "$1 ~ '^[0-9a-f]{64}$'"),
    # A regular expression would be compiled again for every row of every update.
    "hexadecimal": ("$1 NOT GLOB '*[^0-9a-f]*'", "translate($1, '0123456789abcdef', '') = ''"),
    "word": ("$1 GLOB '[a-z]*' AND $1 NOT GLOB '*[^a-z_]*'", "$1 ~ '^[a-z][a-z_]*$'"),
    "is_day": ("$1 GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'", r"$1 ~ '^\d{4}-\d{2}-\d{2}$'"),
    "rfc3339": ("$1 GLOB '????-??-??T??:??:??.??????Z'", "TRUE"),
    "as_time": ("$1", "CAST($1 AS timestamptz)"),
    "has": ("$2 IN (SELECT value FROM json_each($1))", "jsonb_exists($1, $2)"),
    "holds": (
        "NOT EXISTS (SELECT 1 FROM json_each($2) AS member WHERE $1 ->> member.key IS NOT member.value)",
        "$1 @> $2",
    ),
    "rows": ("json_each($1) AS $2", "jsonb_array_elements(CAST($1 AS jsonb)) AS $2 (value)"),
    "lock": ("", "$*"),
    "locked": ("$4", "$2 IN (\n        SELECT $2 FROM $1 WHERE\n            $4\n        ORDER BY $2 $3\n    )"),
    "lock_all": ("SELECT $1", "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"),
    "indexed_by": ("INDEXED BY $1", ""),
    "sqlite": ("$*", ""),
}
_PATH = "SET search_path FROM CURRENT"
"""Keeps a role's temporary table from hiding our table of the same name (`database.py`)."""
_TOKEN = re.compile(r"--[^\n]*|'[^']*'|@(?P<macro>[a-z_0-9]+)")
_PUNCTUATION = re.compile(r"--[^\n]*|'[^']*'|[(),]")
_PLACE = re.compile(r"\$(\d|\*)")
_ONLY = re.compile(r"^-- (sqlite|postgresql): \S", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


def render(text: str, dialect: str) -> str:
    """Replace the macros of a text. Raises ConfigurationError for an unknown or unclosed macro."""
    if "@" not in text:
        return text
    rendered: list[str] = []
    position = 0
    while (token := _TOKEN.search(text, position)) is not None:
        rendered.append(text[position : token.start()])
        position = token.end()
        if (name := token["macro"]) is None:
            rendered.append(token[0])
            continue
        inner: list[str] = []
        if text[position : position + 1] == "(":
            inner = _arguments(text, position)
            position += sum(len(argument) + 1 for argument in inner) + 1
        rendered.append(_macro(name, [render(argument, dialect).strip() for argument in inner], dialect))
    return "".join((*rendered, text[position:]))


def statements(text: str, dialect: str) -> list[str]:
    """Return the statements of a text for a database, rendered.

    A statement ends at a `;` at the end of an unindented line; bodies of functions and triggers are indented.
    """
    parts = [part for part in _split(text) if only_for(part) in {None, dialect}]
    return [part for block in parts for part in _split(render(block, dialect)) if _COMMENT.sub("", part).strip()]


def only_for(text: str) -> str | None:
    """Return the only database that a statement is for, or None for both."""
    match = _ONLY.search(text)
    return None if match is None else match[1]


def _split(text: str) -> Iterator[str]:
    pending = ""
    for part in f"{text}\n".split(";\n"):
        pending += part
        if pending[pending.rfind("\n") + 1 :].startswith(" "):
            pending += ";\n"  # within a body
        else:
            yield pending.strip()
            pending = ""


def _arguments(text: str, start: int) -> list[str]:
    """Return the texts between the commas of the parenthesis that opens at `start`."""
    depth, begin, arguments = 0, start + 1, list[str]()
    for token in _PUNCTUATION.finditer(text, start):
        if token[0] == "(":
            depth += 1
        elif token[0] == ")":
            depth -= 1
        if (depth == 1 and token[0] == ",") or depth == 0:
            arguments.append(text[begin : token.start()])
            begin = token.end()
        if depth == 0:
            return arguments
    raise ConfigurationError("a macro's parenthesis is not closed", observed=text[start : start + 80])


def _macro(name: str, arguments: Sequence[str], dialect: str) -> str:
    if name in _TRIGGERS:
        return _TRIGGERS[name](dialect, *arguments)
    if name in _LISTS:
        return _LISTS[name](dialect, *arguments)
    if name == "pairs":
        row, *columns = arguments
        return ", ".join(f"'{column}', {row}.{column}" for column in columns)
    if name == "changed":
        return f"({_row('NEW', arguments)}) IS DISTINCT FROM ({_row('OLD', arguments)})"
    if name not in _TEXTS:
        raise ConfigurationError("unknown SQL macro", observed=f"@{name}")
    texts = ["".join(f"{argument}, " for argument in arguments)[:-2], *arguments]
    text = _TEXTS[name][dialect == "postgresql"]
    return _PLACE.sub(lambda place: texts[0 if place[1] == "*" else int(place[1])], text)


def _row(row: str, columns: Sequence[str]) -> str:
    return ", ".join(f"{row}.{column}" for column in columns)


def _refuse(dialect: str, trigger: str, event: str, rule: str, *conditions: str) -> str:
    name, *columns = rule.split(": ")
    event = re.sub(r"OF \((.*)\) ON", r"OF \1 ON", event, flags=re.DOTALL)
    head = f"CREATE TRIGGER {trigger} BEFORE {event}\n"
    if dialect == "sqlite":
        when = f"WHEN {_all(conditions)}\n" if conditions else ""
        # RAISE takes only a literal before SQLite 3.47. So a text with values is passed as a JSON path: it does not
        # begin with $, and SQLite refuses such a path with an error that quotes it. SQLite then restores rows that the
        # statement changed earlier, but only if the trigger also has a RAISE. If the id, and so the path, is null,
        # json_extract gives no error, and the RAISE refuses the row.
        words = f"    SELECT json_extract('{{}}', {_words(event, name, *columns)});\n" if columns else ""
        return f"{head}{when}BEGIN\n{words}    SELECT RAISE(ABORT, '{name}');\nEND;"
    cheap = [condition for condition in conditions if "SELECT" not in condition]
    when = f"FOR EACH ROW WHEN (\n    {_all(cheap)}\n)\n" if cheap else "FOR EACH ROW\n"
    if len(cheap) == len(conditions):
        words = "', '".join((name, *columns))
        return f"{head}{when}EXECUTE FUNCTION kfm_refuse('{words}');"
    # PostgreSQL allows no query in WHEN, so a function evaluates such conditions, if the other conditions hold.
    queries = _all([condition for condition in conditions if condition not in cheap])
    words = _words(event, name, *columns) if columns else f"'{name}'"
    return (
        f"CREATE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql {_PATH} AS $$\nBEGIN\n"
        f"    IF\n        {queries}\n    THEN\n"
        f"        RAISE EXCEPTION '%', {words}\n"
        "            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;\n"
        f"    END IF;\n    RETURN {'OLD' if event.startswith('DELETE') else 'NEW'};\nEND\n$$;\n"
        f"{head}{when}EXECUTE FUNCTION {trigger}();"
    )


def _all(conditions: Sequence[str]) -> str:
    return conditions[0] if len(conditions) == 1 else " AND ".join(f"({condition})" for condition in conditions)


def _words(event: str, name: str, who: str, state: str) -> str:
    """Return the SQL expression of the text `name: id: old state > new state`."""
    inserted, deleted = event.startswith("INSERT"), event.startswith("DELETE")
    begin = "'null'" if inserted else f"OLD.{state}"
    end = "'null'" if deleted else f"coalesce(NEW.{state}, 'null')"
    return f"'{name}: ' || {'NEW' if inserted else 'OLD'}.{who} || ': ' || {begin} || ' > ' || {end}"


def _after(dialect: str, trigger: str, event: str, when: str, *statement: str) -> str:
    body = ", ".join(statement)
    if dialect == "sqlite":
        return f"CREATE TRIGGER {trigger} AFTER {event}\nWHEN {when}\nBEGIN\n    {body};\nEND;"
    return (
        f"CREATE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql {_PATH} AS $$\nBEGIN\n    {body};\n"
        f"    RETURN NULL;\nEND\n$$;\n"
        f"CREATE TRIGGER {trigger} AFTER {event}\nFOR EACH ROW WHEN ({when})\nEXECUTE FUNCTION {trigger}();"
    )


def _kept(dialect: str, table: str, rule: str, *keys: str) -> str:
    if dialect == "postgresql":
        return _of_statement("DELETE OR TRUNCATE", f"{table}_is_kept", table, rule)
    deleted = _refuse(dialect, f"{table}_is_not_deleted", f"DELETE ON {table}", rule)
    return f"{deleted}\n{_not_replaced(dialect, table, rule, *keys)}"


def _append_only(dialect: str, table: str, rule: str, *keys: str) -> str:
    if dialect == "postgresql":
        return _of_statement("UPDATE OR DELETE OR TRUNCATE", f"{table}_is_append_only", table, rule)
    changed = _refuse(dialect, f"{table}_is_not_changed", f"UPDATE ON {table}", rule)
    return f"{changed}\n{_kept(dialect, table, rule, *keys)}"


def _not_truncated(dialect: str, table: str, rule: str) -> str:
    # SQLite has no TRUNCATE; its DELETE without WHERE fires the triggers of the rows.
    return "" if dialect == "sqlite" else _of_statement("TRUNCATE", f"{table}_is_not_truncated", table, rule)


def _of_statement(events: str, trigger: str, table: str, rule: str) -> str:
    head = f"CREATE TRIGGER {trigger} BEFORE {events} ON {table}\n"
    return f"{head}FOR EACH STATEMENT EXECUTE FUNCTION kfm_refuse('{rule}');"


def _not_replaced(dialect: str, table: str, rule: str, *keys: str) -> str:
    # SQLite's INSERT OR REPLACE deletes rows, but fires no DELETE trigger.
    if dialect == "postgresql" or not keys:
        return ""
    repeats = " OR ".join(_there(table, key) for key in keys)
    return _refuse(dialect, f"{table}_is_not_replaced", f"INSERT ON {table}", rule, repeats)


def _not_repeated(dialect: str, table: str, key: str) -> str:
    # SQLite's triggers run before ON CONFLICT DO NOTHING. A refusal would fail the statement, so the row is skipped.
    if dialect == "postgresql":
        return ""
    return (
        f"CREATE TRIGGER {table}_is_not_replaced BEFORE INSERT ON {table}\nWHEN {_there(table, key)}\n"
        "BEGIN\n    SELECT RAISE(IGNORE);\nEND;"
    )


def _there(table: str, key: str) -> str:
    same = " AND ".join(f"r.{column} = NEW.{column}" for column in key.strip("()").split(", "))
    return f"EXISTS (SELECT 1 FROM {table} AS r WHERE {same})"  # noqa: S608, text of a schema file


def _each(dialect: str, parameter: str, cast: str | None = None) -> str:
    if dialect == "sqlite":
        return f"SELECT value FROM json_each({parameter})"  # noqa: S608, text of a statement's file
    value = f"jsonb_array_elements_text(CAST({parameter} AS jsonb))"
    return f"SELECT {value if cast is None else f'CAST({value} AS {cast})'} AS value"


def _batch(dialect: str, parameter: str, name: str, *columns: str) -> str:
    pairs = [column.split() for column in columns]
    if dialect == "postgresql":
        listed = ", ".join(f"{column} {_BATCH_TYPES.get(kind, kind)}" for column, kind in pairs)
        return f"jsonb_to_recordset(CAST({parameter} AS jsonb)) AS {name} ({listed})"
    listed = ", ".join(f"value {'->' if kind == 'json' else '->>'} '{column}' AS {column}" for column, kind in pairs)
    return f"(SELECT {listed} FROM json_each({parameter})) AS {name}"  # noqa: S608, text of a statement's file


def _in_order(dialect: str, *keys: str) -> str:
    return "" if dialect == "sqlite" else "ORDER BY " + ", ".join(f'({key}) COLLATE "C"' for key in keys)


def _unless_there(dialect: str, table: str, batch: str, *keys: str) -> str:
    if dialect == "postgresql":
        return "TRUE"
    same = " AND ".join(f"known.{key} = {batch}.{key}" for key in keys)
    return f"NOT EXISTS (SELECT 1 FROM {table} AS known WHERE {same})"  # noqa: S608, text of a statement's file


def _returned(dialect: str, *columns: str) -> str:
    return ", ".join(column.rpartition(".")[2] if dialect == "sqlite" else column for column in columns)


_BATCH_TYPES = {"time": "timestamptz", "json": "jsonb", "real": "double precision"}
_LISTS: dict[str, Callable[..., str]] = {
    "each": _each,
    "batch": _batch,
    "in_order": _in_order,
    "returned": _returned,
    "unless_there": _unless_there,
}
_TRIGGERS: dict[str, Callable[..., str]] = {
    "refuse": _refuse,
    "after": _after,
    "kept": _kept,
    "append_only": _append_only,
    "not_truncated": _not_truncated,
    "not_replaced": _not_replaced,
    "not_repeated": _not_repeated,
}
