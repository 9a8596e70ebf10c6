"""Select and order the tests that a generated mutant runs: those nearest to its code.

The first are the tests named by the list's rows for the code. Then:

- for a Python module, the tests that import or name it, its folder's first; the other tests of its folder, by the names
  of the module that they use; the tests of the modules that import it;
- for a statement, the tests that name it, then those of the modules that run it, which quote its name;
- for the schema, the tests that name the constraint, the trigger or the table, then those of the modules whose
  statements name the table.

A mutant runs at most NEAREST modules of tests, a survivor also the next FURTHER. Slow tests are excluded (`FAR`,
`SLOW`, `MARKS`).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from kfm_dagster_tests import selection
from kfm_dagster_tests.mutants.examining import Mutant, load
from kfm_dagster_tests.order_plugin import LONGEST

NEAREST = 8
"""Number of test modules in a mutant's first examination."""
FURTHER = 16
"""Number of test modules in the second examination, for a mutant that survived the first."""
FEW = 3
"""Test modules that name a definition come first if there are at most this many."""
FAR = {"benchmarks", "browser", "docs", "fuzz", "mutants", "release", "simulation"}
"""Folders whose tests do not test single rules: walks, drawings, measurements."""
SLOW = {
    *LONGEST,
    "ledger/test_ledger_plans.py",
    *("test_imports.py", "test_selection.py", "test_wheel.py"),
}
"""Slow tests besides the walks: of many processes or rows, of the whole tree, and the longest."""
MARKS = "not deployment and not browser"
"""Excludes the cases that start a daemon or a browser."""
EXCEPTIONS: dict[str, list[str]] = {
    "kfm_dagster/console/serving.py": ["cli/test_console_command.py"],
    "kfm_dagster/defs/run_storage.py": ["integration/test_lanes.py"],
    "kfm_dagster/defs/sensors.py": ["integration/test_scheduled_listing.py", "integration/test_sensors.py"],
    "kfm_dagster/deployment/drain.py": ["deployment/test_deployment.py"],
    "kfm_dagster/deployment/local.py": ["deployment/test_deployment.py"],
    "kfm_dagster/exports/explanations/unit_history.py": ["cli/test_wal_issues.py", "cli/test_explain.py"],
    "kfm_dagster/exports/otlp_metrics.py": ["cli/test_console_command.py"],
    "kfm_dagster/ingest/chain.py": ["integration/test_run_rollback.py"],
    "kfm_dagster/ingest/recording.py": ["integration/test_late_sidecar.py", "integration/test_kill_switch.py"],
    "kfm_dagster/reading/reference_store.py": ["followers/virtual/test_clients.py"],
    "kfm_dagster/reading/xarray_engine.py": ["followers/virtual/test_clients.py"],
    "kfm_dagster/recovery/backfill/days.py": ["integration/test_backfill.py"],
    "kfm_dagster/recovery/backfill/progress.py": ["integration/test_backfill.py"],
    "kfm_dagster/recovery/work_orders.py": ["governance/test_review.py", "governance/test_governing_commands.py"],
    "kfm_dagster/views/decisions.py": ["cli/test_mcp_command.py"],
    "kfm_dagster/views/feeds.py": ["cli/test_mcp_command.py", "console/test_api.py", "integration/test_gaps.py"],
    "kfm_dagster/views/units.py": ["cli/test_mcp_command.py", "console/test_api.py"],
}
"""Tests that come first for a file, as exceptions from the rules; slow tests run until the CPU limit."""
SQLITE, POSTGRESQL = "not postgresql", "not sqlite"
"""Python, and a statement in one form, behave alike on both databases, so they are tested on the faster one."""

ONE_SERVER = {"backups", "roles"}
"""Files whose statements are for PostgreSQL only: SQLite has no roles and no archiving."""

_MODULE = re.compile(r"\bkfm_dagster(?:\.\w+)+|(?<=import )kfm_dagster(?= as )")
_FROM = re.compile(r"^\s*from (kfm_dagster[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_DEFINED = re.compile(r"^(?:async )?(?:def|class) ([a-zA-Z]\w*)|^([A-Z]\w*)\b", re.MULTILINE)
_STATEMENT = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_SERVER = re.compile(r"postgres|pgcode|psycopg", re.IGNORECASE)
_QUOTED = re.compile(r"[\"']([\w.]+)")
_HEAD = re.compile(
    r"^CREATE (?:UNIQUE )?(?:TABLE|VIEW|TRIGGER|FUNCTION|INDEX) (\w+)|^@\w+\(\s*(\w+)|^-- (?:sqlite|postgresql): ",
    re.MULTILINE,
)
_END = re.compile(r"^\S[^\n]*;$|^;$", re.MULTILINE)
_TABLE = re.compile(r"^CREATE (?:TABLE|VIEW) (\w+)", re.MULTILINE)
_ONLY = re.compile(r"^-- (sqlite|postgresql): \S", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The test modules for some code, as paths from the root, and which of their cases to run (`-k`; all if empty)."""

    tests: tuple[str, ...]
    further: tuple[str, ...]
    cases: str

    def arguments(self, tests: Sequence[str]) -> str:
        """Return pytest's arguments to run some of the tests; empty without tests."""
        return shlex.join([*tests, "-m", MARKS, *(("-k", self.cases) if self.cases else ())]) if tests else ""


class Tree:
    """The texts below a root: the product, its tests and the rows of the list."""

    def __init__(self, root: Path, rows: Iterable[Mutant] = ()) -> None:
        self.root = root
        self._rows = tuple(rows)

    @cached_property
    def product(self) -> Mapping[str, str]:
        """Return the product's modules."""
        return self._texts("kfm_dagster", "*.py")

    @cached_property
    def tests(self) -> Mapping[str, str]:
        """Return the tests that a mutant can run."""
        modules = self._texts("kfm_dagster_tests", "test_*.py")
        walks, _ = selection.load()
        slow = SLOW | {test for walk in walks for test in walk.tests}
        return {file: text for file, text in modules.items() if _folder_of(file) not in FAR and _name(file) not in slow}

    @cached_property
    def words(self) -> Mapping[str, frozenset[str]]:
        """Return the words of each test module."""
        return {file: frozenset(re.findall(r"\w+", text)) for file, text in self.tests.items()}

    @cached_property
    def quoted(self) -> Mapping[str, set[str]]:
        """Return the names at the beginning of quoted texts in the product, with their modules."""
        modules: dict[str, set[str]] = defaultdict(set)
        for file, text in self.product.items():
            for name in _QUOTED.findall(text):
                modules[name].add(file)
        return modules

    @cached_property
    def tables(self) -> frozenset[str]:
        """Return the tables and views of the schema."""
        schema = self._texts("sql/schema", "*.sql").values()
        return frozenset(name for text in schema for name in _TABLE.findall(text))

    @cached_property
    def users(self) -> Mapping[str, set[str]]:
        """Return the words of all statements, with the modules that run a statement with the word."""
        modules: dict[str, set[str]] = defaultdict(set)
        for query, text in self._texts("sql/queries", "*.sql").items():
            for identifier, block in _statements(text):
                for word in set(re.findall(r"\w+", block)):
                    modules[word].update(self._runners(Path(query).stem, identifier))
        return modules

    @cached_property
    def importers(self) -> Mapping[str, frozenset[str]]:
        """Return the product's modules that import each module."""
        return self._inverted(self.product)

    @cached_property
    def namers(self) -> Mapping[str, frozenset[str]]:
        """Return the tests that import or name each module of the product."""
        return self._inverted(self.tests)

    def of_module(self, file: str, line: int = 0) -> Choice:
        """Return the tests of a module or its line; a line about PostgreSQL is tested on PostgreSQL."""
        lines = self.product[file].splitlines()
        cases = POSTGRESQL if 0 < line <= len(lines) and _SERVER.search(lines[line - 1]) else SQLITE
        exceptions = [f"kfm_dagster_tests/{name}" for name in EXCEPTIONS.get(file, ())]
        above = list(_DEFINED.finditer("\n".join(lines[:line])))
        named = [test for test, words in self.words.items() if above and (above[-1][1] or above[-1][2]) in words]
        exceptions += named if len(named) <= FEW else []
        listed = [row.test for row in self._rows if row.file == file]
        return self._choice([*self._named_by(listed), *self._of_modules([file])], cases, first=exceptions)

    def of_sql(self, file: str, line: int) -> Choice:
        """Return the tests of a line of SQL."""
        text = (self.root / file).read_text(encoding="utf-8")
        start = sum(len(before) for before in text.splitlines(keepends=True)[: line - 1])
        return self._of_schema(file, text, start) if "/schema/" in file else self._of_query(file, text, start)

    def _of_query(self, file: str, text: str, start: int) -> Choice:
        identifier, begin, end = "", 0, len(text)
        for match in _STATEMENT.finditer(text):
            if match.start() > start:
                end = match.start()
                break
            identifier, begin = match[1], match.end()
        module, folder = Path(file).stem, Path(file).parent.name
        runners = self._runners(module, identifier)
        named = [test for test, words in self.tests.items() if f"{module}.{identifier}" in words]
        modules = [*self._listed(file, text[begin:end]), *named, *self._of_modules(runners)]
        cases = "" if folder == "pgstac" else POSTGRESQL if module in ONE_SERVER else _cases(text[begin:end])
        return self._choice(modules, cases)

    def _of_schema(self, file: str, text: str, start: int) -> Choice:
        begin = max((match.end() + 1 for match in _END.finditer(text, 0, start)), default=0)
        end = match.end() if (match := _END.search(text, start)) else len(text)
        block = text[begin:end]
        # The nearest name first: the constraint, then its table.
        names = re.findall(r"\bCONSTRAINT (\w+)", text[begin : text.find("\n", start)])[-1:]
        names += [name for match in _HEAD.finditer(block) for name in match.groups() if name]
        tables = [word for word in re.findall(r"\w+", block) if word in self.tables]
        names += re.findall(r"^@refuse\(\s*\w+, [^,]*(?:\([^)]*\))?[^,]*, (\w+)", block)
        modules = self._listed(file, block)
        for name in names:
            modules += sorted(test for test, words in self.words.items() if name in words)
        users = self._of_modules(sorted({user for table in tables[:1] for user in self.users.get(table, ())}))
        modules += sorted(users, key=lambda test: not self.words[test] & set(tables))
        return self._choice(modules, _cases(block))

    def _listed(self, file: str, block: str) -> list[str]:
        return list(self._named_by(row.test for row in self._rows if row.file == file and row.old in block))

    def _named_by(self, arguments: Iterable[str]) -> Iterator[str]:
        for text in arguments:
            yield from re.findall(r"kfm_dagster_tests/[\w/]+\.py", text)

    def _runners(self, module: str, identifier: str) -> list[str]:
        """Return the modules that quote a statement's name, or else any statement of its file."""
        if near := self.quoted.get(f"{module}.{identifier}"):
            return sorted(near)
        if near := {file for file in self.quoted.get(identifier, ()) if module in re.split(r"[/.]", file)}:
            return sorted(near)
        return sorted({file for text, files in self.quoted.items() if text.startswith(f"{module}.") for file in files})

    def _of_modules(self, files: Iterable[str]) -> list[str]:
        """Return the tests of modules, the nearest first: by names, imports, and used names."""
        files = list(files)
        folders = {_folder_of(file) for file in files}
        defined = {name for file in files for match in _DEFINED.finditer(self.product[file]) for name in match.groups()}
        parents = sorted({parent for file in files for parent in self.importers.get(file, ())})
        direct = Counter(test for file in files for test in self.namers.get(file, ()))
        indirect = Counter(test for parent in parents for test in self.namers.get(parent, ()))
        parts = {part for file in files for part in _parts(file)}
        # Tests do not import a command, or a module that only a command imports: they call the command by its name.
        faces = files if "cli" in folders else () if direct else parents
        if commands := {part for file in faces if _folder_of(file) == "cli" for part in _parts(file)}:
            called = re.compile(rf"call\(\s*\"(?:{'|'.join(sorted(commands))})\"")
            direct.update(test for test, text in self.tests.items() if called.search(text))

        def order(test: str) -> tuple[object, ...]:
            in_folder, alike = _folder_of(test) in folders, len(parts & _parts(test))
            return (
                not (in_folder and alike),
                not (in_folder and direct[test]),
                not direct[test],
                not in_folder,
                -alike,
                -len(defined & self.words[test]),
                -indirect[test],
                test,
            )

        return sorted({*direct, *indirect, *(test for test in self.tests if _folder_of(test) in folders)}, key=order)

    def _choice(self, modules: Iterable[str], cases: str, *, first: Sequence[str] = ()) -> Choice:
        near = list(dict.fromkeys([*first, *(test for test in modules if test in self.tests)]))
        return Choice(tests=tuple(near[:NEAREST]), further=tuple(near[NEAREST : NEAREST + FURTHER]), cases=cases)

    def _inverted(self, texts: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
        modules: dict[str, set[str]] = defaultdict(set)
        for file, text in texts.items():
            for module in self._modules(text):
                modules[module].add(file)
        return {module: frozenset(files) for module, files in modules.items()}

    def _modules(self, text: str) -> set[str]:
        """Return the files of the modules that a text imports or names."""
        names = set(_MODULE.findall(text))
        for match in _FROM.finditer(text):
            names |= {f"{match[1]}.{name}" for name in re.findall(r"\w+", match[2])}
        return {file for name in names if (file := self._file(name)) is not None}

    def _file(self, name: str) -> str | None:
        """Return the file of the longest module that a dotted name begins with."""
        parts = name.split(".")
        while parts:
            path = "/".join(parts)
            for file in (f"{path}.py", f"{path}/__init__.py"):
                if file in self.product:
                    return file
            parts.pop()
        return None

    def _texts(self, folder: str, pattern: str) -> dict[str, str]:
        paths = sorted((self.root / folder).rglob(pattern))
        return {str(path.relative_to(self.root)): path.read_text(encoding="utf-8") for path in paths}


@cache
def tree(root: Path) -> Tree:
    """Return the texts below a root, with the list's rows."""
    return Tree(root, load())


def _name(file: str) -> str:
    return file.removeprefix(f"{selection.TESTS}/")


def _folder_of(file: str) -> str:
    """Return the first folder of a file below the package or its tests; empty without one."""
    first, _, rest = file.partition("/")[2].partition("/")
    return first if rest else ""


def _parts(file: str) -> set[str]:
    """Return the words of a file's path below its folder."""
    words = set(re.split(r"[/_]", file.removesuffix(".py"))[2:])
    return words - {"dagster", "tests", "test", "command", _folder_of(file)}


def _cases(block: str) -> str:
    only = _ONLY.search(block)
    return POSTGRESQL if only is not None and only[1] == "postgresql" else SQLITE


def _statements(text: str) -> Iterator[tuple[str, str]]:
    parts = _STATEMENT.split(text)
    return zip(parts[1::2], parts[2::2], strict=True)
