"""Build the site: `python -m docs_site FOLDER` writes it to FOLDER/site, offline."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path, PurePath
from typing import Any

import click
import yaml

from docs_site import pages
from kfm_dagster.cli.main import main
from kfm_dagster.errors import KfmError

CONFIG = Path(__file__).with_name("mkdocs.yml")


class SiteError(KfmError):
    """The site cannot be built."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def build(folder: Path) -> None:
    """Build the site of the documentation into FOLDER/site.

    Example: python -m docs_site build/docs
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pages.write(folder / "pages")
    there = {page.relative_to(folder / "pages").as_posix() for page in (folder / "pages").rglob("*.md")}
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["nav"] = navigation(config["nav"], there)
    (folder / CONFIG.name).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(folder / CONFIG.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603, our own arguments
    if done.returncode:
        click.echo(done.stdout + done.stderr, err=True)
        raise SiteError(observed="the warnings above", expected="none", next_step="correct the page and build it again")
    click.echo(str(folder / "site" / "index.html"))


def navigation(entries: list[Any], there: set[str]) -> list[Any]:
    """Replace patterns by pages. Raises SiteError unless the navigation has each page exactly once."""
    rest = there - set(_named(entries))
    filled = _filled(entries, rest)
    placed = _named(filled)
    without, unknown = sorted(there - set(placed)), sorted(set(placed) - there)
    if without or unknown or len(set(placed)) < len(placed):
        raise SiteError(
            "the navigation does not have each page exactly once",
            observed=f"pages without an entry {without}, entries without a page {unknown}, {len(placed)} entries of "
            f"{len(there)} pages",
            next_step="name each page exactly once in docs_site/mkdocs.yml",
        )
    return filled


def _named(entry: Any) -> list[str]:
    """Return the pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for below in (entry.values() if isinstance(entry, dict) else entry) for page in _named(below)]


def _filled(entries: list[Any], rest: set[str]) -> list[Any]:
    filled: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            filled.append({title: _filled(below, rest) if isinstance(below, list) else below})
        else:
            filled += sorted(page for page in rest if PurePath(page).match(entry)) if "*" in entry else [entry]
    return filled


if __name__ == "__main__":
    main(command=build, name="docs_site")
