"""Generate mutants of the product's Python by mutmut's operators, of its SQL by `sql.py`.

This module selects the mutated code, the changed lines, and the order of mutants; `nearest.py` selects their tests.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile, zip_longest
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from kfm_dagster_tests.change import changed_paths
from kfm_dagster_tests.mutants import nearest, sql
from kfm_dagster_tests.mutants.examining import Mutant
from kfm_dagster_tests.programs import git

SHOWN = 60
"""Characters of a mutated text to show, beginning shortly before the difference."""

LOGGERS = m.Name("_LOG") | m.Name("_log")
UNWANTED: list[tuple[m.BaseMatcherNode, str]] = [
    (m.Annotation(), "types are the type checker's"),
    (m.TypeAlias(), "types are the type checker's"),
    (m.AnnAssign(annotation=m.Annotation(m.Name("TypeAlias"))), "types are the type checker's"),
    (m.Import(), "names are the linter's"),
    (m.ImportFrom(), "names are the linter's"),
    (m.Expr(value=m.SimpleString()), "a docstring"),
    (m.Raise(), "the text of an error; the mutants of its condition test that it is raised"),
    (m.Call(func=m.Attribute(value=LOGGERS)), "the text of a log line"),
    (m.Decorator(), "how a class is declared: frozen, keyword-only, the name of a span"),
    (m.Assert(), "assertions for the type checker"),
    (m.Lambda(body=m.Name("None")), "a callback without effect"),
    (m.Call(func=m.Name("cast") | m.Name("NewType") | m.Name("TypeVar")), "types are the type checker's"),
    (
        m.Assign(
            targets=[m.AssignTarget(m.Name(m.MatchRegex("[A-Z].*[a-z].*")))],
            value=m.Subscript() | m.BinaryOperation(operator=m.BitOr()),
        ),
        "the name of a type",
    ),
    (m.Arg(keyword=m.Name("timeout"), value=m.Integer()), "seconds; one more or less changes nothing"),
    (m.Assign(targets=[m.AssignTarget(m.Name("__all__"))]), "names are the linter's"),
    (m.If(test=m.Name("TYPE_CHECKING")), "is false at run time"),
]
"""Nodes that are not mutated, with everything within them, and the reason."""
PROSE = m.SimpleString(m.MatchRegex(r"(?s).*\s.*")) | m.FormattedString(
    parts=[m.ZeroOrMore(), m.FormattedStringText(m.MatchRegex(r"(?s).*\s.*")), m.ZeroOrMore()]
)
"""A text with a space is prose, whose wording tests do not hold; it is not mutated or removed."""


@dataclass(frozen=True, kw_only=True)
class PythonCandidate:
    """A change of a Python syntax tree."""

    file: str
    line: int
    module: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode

    def mutant(self, root: Path) -> Mutant | None:
        """Make the change; None if the result is not valid Python."""
        changed = self.module.deep_replace(self.old, self.new)
        assert isinstance(changed, cst.Module)
        try:
            compile(changed.code, self.file, "exec")
        except SyntaxError:
            return None
        old, new = (self.module.code_for_node(node) for node in (self.old, self.new))
        choice = nearest.tree(root).of_module(self.file, self.line)
        return _mutant(self, shown=(old, new), texts=(self.module.code, changed.code), choice=choice)


@dataclass(frozen=True, kw_only=True)
class SqlCandidate:
    """A change of a text of SQL."""

    file: str
    line: int
    text: str
    edit: sql.Edit

    def mutant(self, root: Path) -> Mutant | None:
        """Make the change."""
        edit = self.edit
        begin, end = max(edit.start - SHOWN // 3, 0), edit.end + SHOWN // 3
        shown = self.text[begin:end], self.text[begin : edit.start] + edit.new + self.text[edit.end : end]
        choice = nearest.tree(root).of_sql(self.file, self.line)
        return _mutant(self, shown=shown, texts=(self.text, edit.applied(self.text)), choice=choice)


Candidate = PythonCandidate | SqlCandidate
"""A possible change: its file from the root, and the line where it begins."""


def _mutant(
    candidate: Candidate, *, shown: tuple[str, str], texts: tuple[str, str], choice: nearest.Choice
) -> Mutant | None:
    """Return the mutant of a candidate; None if no test is near."""
    if not choice.tests:
        return None
    old, new = (" ".join(text.split()) for text in shown)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    begin = max(alike - SHOWN // 3, 0)
    return Mutant(
        rule=f"{candidate.line}: {_cut(old[begin:])} -> {_cut(new[begin:])}",
        file=candidate.file,
        old=texts[0],
        new=texts[1],
        test=choice.arguments(choice.tests),
        further=choice.arguments(choice.further),
        generated=True,
    )


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


WORD = m.SimpleStatementLine([m.Assign(value=m.SimpleString())])
VOCABULARY = m.ClassDef(bases=[m.ZeroOrMore(), m.Arg(m.Name("StrEnum")), m.ZeroOrMore()])
"""The values of a StrEnum are not mutated: a value that is stored or shown is in a constraint or in a test's table, and
any other value is arbitrary."""
_UNWANTED = {
    name: [matcher for matcher, _ in UNWANTED if type(matcher).__name__ == name]
    for name in {type(matcher).__name__ for matcher, _ in UNWANTED}
}
"""UNWANTED by the type of node."""


class _Mutator(cst.CSTVisitor):
    """Collects the candidates of a file, or of some of its lines."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: str, module: cst.Module, lines: Collection[int] | None) -> None:
        super().__init__()
        self._file, self._module, self._lines = file, module, lines
        self.candidates: list[PythonCandidate] = []
        self._words: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if not self._has_lines(node):
            return False
        if isinstance(node, cst.ClassDef) and m.matches(node, VOCABULARY):
            self._words |= {line for line in node.body.body if m.matches(line, WORD)}
        if node in self._words:
            return False
        if any(m.matches(node, matcher) for matcher in _UNWANTED.get(type(node).__name__, ())) or _is_prose(node):
            return False
        if isinstance(node, cst.If):
            # mutmut has no operator that disables a condition.
            self._add(node.test, cst.Name("False"))
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                changes = list(operator(node))
                # One change of a text is enough: a test that compares its letters also compares their case.
                for changed in changes[:1] if isinstance(node, cst.SimpleString) else changes:
                    if not (_loses_prose(node, changed) or _is_as_false(node, changed)):
                        self._add(node, changed)
        return True

    def _has_lines(self, node: cst.CSTNode) -> bool:
        """Return whether the node has any of the lines."""
        span = None if self._lines is None else self.get_metadata(PositionProvider, node, None)
        return span is None or any(span.start.line <= line <= span.end.line for line in self._lines or ())

    def _add(self, old: cst.CSTNode, new: cst.CSTNode) -> None:
        line = self.get_metadata(PositionProvider, old).start.line
        if self._lines is None or line in self._lines:
            self.candidates.append(PythonCandidate(file=self._file, line=line, module=self._module, old=old, new=new))


def _is_prose(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString | cst.FormattedString) and m.matches(node, PROSE)


def _loses_prose(old: cst.CSTNode, new: cst.CSTNode) -> bool:
    if isinstance(old, cst.Assign):
        return _is_prose(old.value)
    if not (isinstance(old, cst.Call) and isinstance(new, cst.Call)):
        return False
    kept = {id(argument) for argument in new.args}
    return any(id(argument) not in kept and _is_prose(argument.value) for argument in old.args)


def _is_as_false(old: cst.CSTNode, new: cst.CSTNode) -> bool:
    """Return whether an argument False became None, which is false too."""
    if not (isinstance(old, cst.Call) and isinstance(new, cst.Call) and len(old.args) == len(new.args)):
        return False
    pairs = zip(old.args, new.args, strict=True)
    return any(m.matches(a.value, m.Name("False")) and m.matches(b.value, m.Name("None")) for a, b in pairs)


def candidates(root: Path, file: str, lines: Collection[int] | None = None) -> list[Candidate]:
    """Return every candidate of a file, or of some of its lines, in the order of the text."""
    text = (root / file).read_text(encoding="utf-8")
    if file.endswith(".sql"):
        listed = [
            SqlCandidate(file=file, line=text.count("\n", 0, edit.start) + 1, text=text, edit=edit)
            for edit in sql.edits(text)
        ]
        return sorted((item for item in listed if lines is None or item.line in lines), key=lambda item: item.line)
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    mutator = _Mutator(file, wrapper.module, lines)
    wrapper.visit(mutator)
    return list(mutator.candidates)


def mutated_files(root: Path) -> list[str]:
    """Return the paths, from the root, of the product's Python and SQL files."""
    paths = chain((root / "kfm_dagster").rglob("*.py"), (root / "sql").rglob("*.sql"))
    return sorted(str(path.relative_to(root)) for path in paths)


def folder_of(file: str) -> str:
    """Return a file's folder: `ledger`, `sql/queries`; `kfm_dagster` for a file in no folder below it."""
    parts = file.split("/")
    if parts[0] == "sql":
        return "/".join(parts[:2])
    return parts[1] if len(parts) > 2 else parts[0]


def drawn(root: Path, files: Mapping[str, Collection[int] | None], *, seed: str) -> Iterator[Candidate]:
    """Draw candidates from all folders in turn, from these lines of each file (None: all lines).

    Within a folder a file is drawn with a probability by its size. Within a file one candidate of each line comes
    before any second candidate of a line.
    """
    chance = random.Random(seed)
    folders: dict[str, list[str]] = defaultdict(list)
    for file in sorted(files):
        folders[folder_of(file)].append(file)
    order = sorted(folders)
    chance.shuffle(order)
    turns = [_of_folder(root, {file: files[file] for file in folders[name]}, seed=f"{seed} {name}") for name in order]
    return (candidate for turn in zip_longest(*turns) for candidate in turn if candidate is not None)


def _of_folder(root: Path, files: Mapping[str, Collection[int] | None], *, seed: str) -> Iterator[Candidate]:
    chance = random.Random(seed)
    sizes = {
        file: (root / file).stat().st_size if lines is None else max(len(lines), 1) for file, lines in files.items()
    }
    sizes = {file: size for file, size in sizes.items() if size}
    read: dict[str, Iterator[Candidate]] = {}
    while sizes:
        file = chance.choices(list(sizes), weights=list(sizes.values()))[0]
        if file not in read:
            read[file] = _of_file(candidates(root, file, files[file]), chance)
        if (candidate := next(read[file], None)) is None:
            del sizes[file]
        else:
            yield candidate


def _of_file(in_file: Sequence[Candidate], chance: random.Random) -> Iterator[Candidate]:
    lines: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in in_file:
        lines[candidate.line].append(candidate)
    groups = list(lines.values())
    chance.shuffle(groups)
    for group in groups:
        chance.shuffle(group)
    return (candidate for round_ in zip_longest(*groups) for candidate in round_ if candidate is not None)


def changed_lines(root: Path, base: str) -> dict[str, set[int]]:
    """Return the numbers of the lines of product files and SQL that are new since a commit.

    A moved or indented line is not new.
    """
    files = set(mutated_files(root))
    form = ("-w", "-U0", "--no-color", "--no-ext-diff", "--no-prefix")
    diff = git(root, "diff", *form, base, "--", "kfm_dagster", "sql")
    gone = Counter(line[1:].strip() for line in diff.splitlines() if re.match(r"-(?!-- )", line))
    new_lines: dict[str, set[int]] = defaultdict(set)
    file, number = "", 0
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ ")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)", line):
            number = int(hunk[1])
        elif line.startswith("+"):
            text = line[1:].strip()
            if gone[text] > 0:
                gone[text] -= 1
            else:
                new_lines[file].add(number)
            number += 1
    known = git(root, "ls-files", "-z").split("\0")
    for file in (changed_paths(root, base) & files) - set(known):
        new_lines[file] = set(range(1, len((root / file).read_text(encoding="utf-8").splitlines()) + 1))
    return {file: lines for file, lines in new_lines.items() if file in files}
