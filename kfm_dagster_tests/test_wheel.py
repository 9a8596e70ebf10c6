"""The wheel ships what users run: by the packaging configuration, whose folders are listed here as hatchling does."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def shipped() -> dict[str, str]:
    """The tracked files that are packaged, by their path in the wheel."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel) == {"packages", "force-include"}
    places = {**{name: name for name in wheel["packages"]}, **wheel["force-include"]}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {
        place + name.removeprefix(source): name
        for name in tracked.splitlines()
        for source, place in places.items()
        if name == source or name.startswith(f"{source}/")
    }


def test_no_benchmark_fault_or_test_is_in_the_wheel() -> None:
    files = shipped()
    assert {"kfm_dagster/cli/main.py", "kfm_dagster/py.typed", "kfm_dagster/_bundled/dagster.yaml"} <= set(files)
    outside = ("benchmarks/", "docs/", "fault_injection/", "kfm_dagster_tests/")
    assert [name for name in files.values() if name.startswith(outside)] == []
    words = ("bench", "campaign", "conftest", "injector", "soak", "test_")
    assert [name for name in files if any(Path(name).name.startswith(word) for word in words)] == []
