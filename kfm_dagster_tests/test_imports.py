"""Importing the package has no effects: no variable read, no socket opened, no file written."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from kfm_dagster_tests.sources import PACKAGE, trees

IMPORT_EVERYTHING = """
import importlib, json, os, pkgutil, sys

import kfm_dagster

seen = {"sockets": [], "written": [], "variables": []}

def watch(event, arguments):
    if event in {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"}:
        # urllib3 looks whether this machine has IPv6 when it is imported, and works without an answer.
        if arguments[1:] != (("::1", 0),):
            seen["sockets"].append(f"{event} {arguments[1:]}")
        raise OSError("sockets are blocked")
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen["written"].append(str(arguments[0]))
    if event in {"os.mkdir", "os.remove", "os.rename"}:
        seen["written"].append(str(arguments[0]))

class Watched(type(os.environ)):
    def __getitem__(self, name):
        caller = sys._getframe(1)
        while caller and caller.f_globals.get("__name__") in {"os", "collections.abc"}:
            caller = caller.f_back
        # Settings of the S3 client; the package sets them before the client is imported, unless they are set already.
        of_the_client = name.startswith("MIMALLOC_")
        if caller and caller.f_globals.get("__name__", "").startswith("kfm_dagster") and not of_the_client:
            seen["variables"].append(name)
        return super().__getitem__(name)

os.environ.__class__ = Watched
sys.addaudithook(watch)
# Modules that are imported for their effects: the entry point, and two in the process from which runs are forked.
apart = {"kfm_dagster.definitions", "kfm_dagster.defs.code_version", "kfm_dagster.fork_template"}
names = [
    module.name
    for module in pkgutil.walk_packages(kfm_dagster.__path__, "kfm_dagster.")
    if module.name not in apart
]
for name in names:
    importlib.import_module(name)
print(json.dumps(seen | {"modules": names}))
"""


def test_no_two_classes_of_the_package_share_a_name() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].append(path)
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_only_one_module_imports_private_parts_of_dagster() -> None:
    """Each use is opt-in; docs/adr/036-dagster-by-its-front-door.md says when the use can be removed."""
    private = re.compile(r"dagster(_\w+)?(\.\w+)*\._")
    uses: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            uses[path] |= {name for name in names if private.match(name)}
    assert {module: names for module, names in uses.items() if names} == {
        "defs/code_server.py": {"dagster._cli.api", "dagster._grpc.server", "dagster._grpc.server.DagsterApiServer"}
    }
    for file in (PACKAGE.parent / "dagster.yaml", *(PACKAGE.parent / "deploy").rglob("dagster.yaml")):
        assert "kfm_dagster" not in file.read_text(encoding="utf-8"), file


def test_a_protocol_has_at_most_eight_members() -> None:
    member_counts: dict[str, int] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
                member_counts[node.name] = sum(
                    isinstance(member, ast.FunctionDef | ast.AnnAssign) for member in node.body
                )
    assert "IdempotentNode" in member_counts
    assert {name: members for name, members in member_counts.items() if members > 8} == {}


def test_the_first_line_of_a_docstring_has_at_most_90_characters() -> None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    first_lines = [
        (path, (ast.get_docstring(node) or "").partition("\n")[0])
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, documented)
    ]
    assert len(first_lines) > 5_000
    assert [(path, line) for path, line in first_lines if len(line) > 90] == []


def test_importing_the_package_has_no_outside_effects(tmp_path: Path) -> None:
    """Import all modules except those in `apart`, in an empty environment."""
    process = subprocess.run(
        [sys.executable, "-B", "-c", IMPORT_EVERYTHING],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    effects = json.loads(process.stdout.splitlines()[-1])
    assert len(effects.pop("modules")) > 80
    assert effects == {"sockets": [], "variables": [], "written": []}
    assert list(tmp_path.iterdir()) == []
