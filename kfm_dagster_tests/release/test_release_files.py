"""A release's files beside wheel and sdist: the SBOM, and the statement of digests."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.utils import canonicalize_name

from kfm_dagster_tests.programs import run_program

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_statement", ROOT / "deploy" / "release" / "statement.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a target with the tools of this environment, without installing them again."""
    tools = (f"BIN={Path(sys.executable).parent}", "INSTALLED=")
    return run_program("make", "-s", *arguments, *tools, folder=ROOT, **variables)


def test_the_sbom_names_every_locked_package_once_with_its_version(tmp_path: Path) -> None:
    file = tmp_path / "sbom.cdx.json"
    done = make("sbom", f"SBOM={file}")
    assert done.returncode == 0, done.stderr
    sbom = json.loads(file.read_bytes())
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", "kfm-dagster")
    named = sorted((canonicalize_name(part["name"]), part["version"]) for part in sbom["components"])
    locked = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert named == sorted((canonicalize_name(name), version) for name, version in locked)
    assert len(named) > 200
    # Lists of advisories name packages by their purl.
    assert all(part["purl"].startswith("pkg:pypi/") for part in sbom["components"])


def test_the_statement_has_the_digests_of_the_built_files_and_of_their_sources(
    script: ModuleType, tmp_path: Path
) -> None:
    files = {"kfm_dagster-0.1.0-py3-none-any.whl": b"wheel", "kfm_dagster-0.1.0.tar.gz": b"sdist"}
    for name, content in {**files, "sbom.cdx.json": b"{}", "other.txt": b"x"}.items():
        (tmp_path / name).write_bytes(content)
    statement = script.statement(tmp_path, builder="https://ci.example.org", commit="c" * 40)
    assert {file["name"]: file["digest"]["sha256"] for file in statement["subject"]} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }
    source, lock = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "c" * 40}
    assert lock["digest"]["sha256"] == hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
    assert [file["name"] for file in statement["predicate"]["runDetails"]["byproducts"]] == ["sbom.cdx.json"]
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1",
    )  # fmt: skip


def test_a_folder_without_both_wheel_and_sdist_is_refused(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "kfm_dagster-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    with pytest.raises(SystemExit, match="1 built files; expected a wheel and an sdist; next: make dist"):
        script.statement(tmp_path, builder="https://ci.example.org", commit="c" * 40)


def test_an_audit_without_network_fails_with_one_line(tmp_path: Path) -> None:
    closed = "http://127.0.0.1:9"  # the port of the discard protocol, at which no program listens
    done = make("audit", https_proxy=closed, HTTPS_PROXY=closed, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode != 0
    [line] = done.stdout.splitlines()
    assert line.startswith("audit: the list cannot be asked; observed ")
    assert line.endswith("; next: run it where pypi.org answers")
