"""The wheel's files, listed from the packaging configuration as hatchling lists them."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from kfm_dagster_tests.programs import git

ROOT = Path(__file__).resolve().parent.parent

NOT_INSTALLED = """
import importlib.metadata, sys
from packaging.requirements import Requirement

requirements = [Requirement(line) for line in importlib.metadata.requires("kfm-dagster")]
def modules(requirements):
    return {requirement.name.replace("-", "_").lower() for requirement in requirements}
def is_installed(requirement):
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in EXTRAS)
missing = modules(requirements) - modules(filter(is_installed, requirements))

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].lower() in {*missing, "benchmarks", "fault_injection", "kfm_dagster_tests"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""


def with_extras(*extras: str) -> str:
    """Return code that hides all packages except a default install's and those of these extras."""
    return NOT_INSTALLED.replace("EXTRAS", repr(("", *extras)))


def install_wheel(folder: Path, *extras: str) -> dict[str, str]:
    """Install the wheel's files in a folder; return a shell's variables that provide only these extras."""
    for name, source in shipped().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / source, folder / name)
    (folder / "sitecustomize.py").write_text(with_extras(*extras))
    return {"PYTHONPATH": str(folder)}


def shipped() -> dict[str, str]:
    """Return the tracked packaged files by their path in the wheel."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel) == {"packages", "force-include"}
    places = {**{name: name for name in wheel["packages"]}, **wheel["force-include"]}
    return {
        place + name.removeprefix(source): name
        for name in git(ROOT, "ls-files").splitlines()
        for source, place in places.items()
        if name == source or name.startswith(f"{source}/")
    }


def test_no_benchmark_fault_or_test_is_in_the_wheel() -> None:
    files = shipped()
    assert {"kfm_dagster/cli/main.py", "kfm_dagster/py.typed", "kfm_dagster/_bundled/dagster.yaml"} <= set(files)
    assert "kfm_dagster/_bundled/configs/registry-exceptions.yaml" in files
    outside = ("benchmarks/", "docs/", "fault_injection/", "kfm_dagster_tests/")
    assert [name for name in files.values() if name.startswith(outside)] == []
    words = ("bench", "campaign", "conftest", "injector", "soak", "test_")
    assert [name for name in files if any(Path(name).name.startswith(word) for word in words)] == []
