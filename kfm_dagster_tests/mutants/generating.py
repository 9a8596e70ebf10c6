"""Generated mutants: what mutmut's operators make of the rooms where a slip costs data, and the tests nearest to each.

Belongs here: which code is mutated, what is left out and why, the order in which mutants are drawn, and which lines a
change touched. Does not belong here: examining a mutant (`examining.py`).
"""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, takewhile, zip_longest
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from kfm_dagster_tests.mutants.examining import Mutant

_INTAKE = [
    "ingest/test_recording.py",
    "integration/test_forged_messages.py",
    "integration/test_acknowledgement.py",
    "integration/test_completion.py",
    "integration/test_kill_switch.py",
]
NEAREST = {
    "kfm_dagster/ledger": ["ledger"],
    "kfm_dagster/ledger/cases.py": ["governance/test_evidence.py"],
    "kfm_dagster/stages": ["stages"],
    "kfm_dagster/ingest/intake.py": _INTAKE,
    "kfm_dagster/ingest/recording.py": _INTAKE,
    "kfm_dagster/ingest/senders.py": _INTAKE,
    "kfm_dagster/operators/message_parse.py": ["operators/test_message_parse.py", *_INTAKE[:2]],
}
"""Folders and files of product code, and below `kfm_dagster_tests`, the tests that claim them."""
SLOW = {"test_ledger_contention.py", "test_ledger_plans.py"}
"""Tests of many processes and of many rows: what they hold of one line, a faster one holds."""
DIALECT = "not postgresql"
"""Python is the same on both databases."""
SHOWN = 60
"""Characters of a mutated text that are shown, from shortly before it differs."""

LOGGERS = m.Name("_LOG") | m.Name("_log")
UNWANTED: list[tuple[m.BaseMatcherNode, str]] = [
    (m.Annotation() | m.TypeAlias(), "types are the type checker's"),
    (m.Import() | m.ImportFrom(), "names are the linter's"),
    (m.Expr(value=m.SimpleString()), "a docstring"),
    (m.Raise(), "what an error says; that it is raised, its condition's mutants ask"),
    (m.Call(func=m.Attribute(value=LOGGERS)), "what is logged"),
    (m.Decorator(), "how a class is declared: frozen, keyword-only, the name of a span"),
    (m.Assert(), "what the type checker is told"),
    (m.Call(func=m.Name("cast") | m.Name("NewType") | m.Name("TypeVar")), "types are the type checker's"),
    (
        m.Assign(targets=[m.AssignTarget(m.Name(m.MatchRegex("[A-Z].*[a-z].*")))], value=m.Subscript()),
        "the name of a type",
    ),
    (m.Assign(targets=[m.AssignTarget(m.Name("__all__"))]), "names are the linter's"),
]
"""What is not mutated, and nothing inside of it."""
PROSE = m.SimpleString(m.MatchRegex(r"(?s).*\s.*")) | m.FormattedString(
    parts=[m.ZeroOrMore(), m.FormattedStringText(m.MatchRegex(r"(?s).*\s.*")), m.ZeroOrMore()]
)
"""A text with a blank is written for people: its facts are asked for, not its words. It stays where it is."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change that can be made. `guard`: it takes away the condition under which an error is raised."""

    file: str
    line: int
    guard: bool
    module: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode

    def mutant(self, root: Path) -> Mutant | None:
        """Make the change; None where no Python comes of it."""
        changed = self.module.deep_replace(self.old, self.new)
        assert isinstance(changed, cst.Module)
        try:
            compile(changed.code, self.file, "exec")
        except SyntaxError:
            return None
        kind = "guard " if self.guard else ""
        old, new = (" ".join(self.module.code_for_node(node).split()) for node in (self.old, self.new))
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
        begin = max(alike - SHOWN // 3, 0)
        shown = f"{_cut(old[begin:])} -> {_cut(new[begin:])}"
        return Mutant(
            rule=f"{kind}{self.line}: {shown}",
            file=self.file,
            old=self.module.code,
            new=changed.code,
            test=shlex.join([*nearest_tests(root, self.file), "-k", DIALECT]),
            required=self.guard,
            any_end=True,
        )


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class _Mutator(cst.CSTVisitor):
    """Collects the candidates of one file."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: str, module: cst.Module) -> None:
        super().__init__()
        self._file, self._module = file, module
        self.found: list[Candidate] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if any(m.matches(node, matcher) for matcher, _ in UNWANTED) or m.matches(node, PROSE):
            return False
        if isinstance(node, cst.If):
            # mutmut has no operator that takes a condition away.
            raises = m.matches(node.body, m.IndentedBlock([m.ZeroOrMore(), m.SimpleStatementLine([m.Raise()])]))
            self._add(node.test, cst.Name("False"), guard=raises)
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                changes = list(operator(node))
                # Of a text one change is enough: what asks for its letters asks for their case.
                for changed in changes[:1] if isinstance(node, cst.SimpleString) else changes:
                    if not _loses_prose(node, changed):
                        self._add(node, changed)
        return True

    def _add(self, old: cst.CSTNode, new: cst.CSTNode, *, guard: bool = False) -> None:
        line = self.get_metadata(PositionProvider, old).start.line
        self.found.append(Candidate(file=self._file, line=line, guard=guard, module=self._module, old=old, new=new))


def _loses_prose(old: cst.CSTNode, new: cst.CSTNode) -> bool:
    if isinstance(old, cst.Assign):
        return m.matches(old.value, PROSE)
    if not (isinstance(old, cst.Call) and isinstance(new, cst.Call)):
        return False
    kept = {id(argument) for argument in new.args}
    return any(id(argument) not in kept and m.matches(argument.value, PROSE) for argument in old.args)


def candidates(root: Path, files: Iterable[str]) -> list[Candidate]:
    """Return every candidate of these files, in the order of the text."""
    found = []
    for file in files:
        wrapper = MetadataWrapper(cst.parse_module((root / file).read_text(encoding="utf-8")))
        mutator = _Mutator(file, wrapper.module)
        wrapper.visit(mutator)
        found += mutator.found
    return found


def mutated_files(root: Path) -> list[str]:
    """Return the product files that are mutated, as paths from the root."""
    paths = chain.from_iterable(
        (root / name).rglob("*.py") if (root / name).is_dir() else [root / name] for name in NEAREST
    )
    return sorted({str(path.relative_to(root)) for path in paths})


def nearest_tests(root: Path, file: str) -> list[str]:
    """Return the test files nearest to a product file; those that name its module first, as one failure is enough."""
    near = chain.from_iterable(tests for name, tests in NEAREST.items() if file == name or file.startswith(f"{name}/"))
    module = file.removesuffix(".py").replace("/", ".")
    found = []
    for name in near:
        path = root / "kfm_dagster_tests" / name
        found += [one for one in sorted(path.rglob("test_*.py")) if one.name not in SLOW] if path.is_dir() else [path]
    strangers = {path for path in found if not re.search(rf"\b{re.escape(module)}\b", path.read_text(encoding="utf-8"))}
    return [str(path.relative_to(root)) for path in sorted(found, key=lambda path: path in strangers)]


def drawn(found: Collection[Candidate], *, seed: int) -> Iterator[Candidate]:
    """Yield guards first, then one mutant of each line, then a second one: no line with many has more weight."""
    rng = random.Random(seed)
    by_line: dict[tuple[str, int], list[Candidate]] = defaultdict(list)
    for one in rng.sample(list(found), len(found)):
        by_line[one.file, one.line].append(one)
    rounds = list(chain.from_iterable(zip_longest(*by_line.values())))
    yield from (one for one in rounds if one is not None and one.guard)
    yield from (one for one in rounds if one is not None and not one.guard)


def changed_lines(root: Path, base: str) -> Mapping[str, set[int]] | None:
    """Return the lines of product files that are new since a commit, by number; None where there is no such commit.

    What was only moved or indented is not new: a line that was there before, wherever it was.
    """
    git = ["git", "-C", str(root)]
    known = subprocess.run(
        [*git, "rev-parse", "-q", "--verify", f"{base}^{{commit}}"], capture_output=True, check=False
    )
    if known.returncode != 0:
        return None
    command = [*git, "diff", "-w", "-U0", "--no-color", "--no-ext-diff", "--no-prefix", base, "--", "kfm_dagster"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    gone = Counter(line[1:].strip() for line in said.splitlines() if re.match(r"-(?!-- )", line))
    found: dict[str, set[int]] = defaultdict(set)
    file, number = "", 0
    for line in said.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ ")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)", line):
            number = int(hunk[1])
        elif line.startswith("+"):
            text = line[1:].strip()
            if gone[text] > 0:
                gone[text] -= 1
            else:
                found[file].add(number)
            number += 1
    return found
