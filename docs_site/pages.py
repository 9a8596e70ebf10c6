"""The site's pages: `docs/`, README, CONTRIBUTING, CHANGELOG, and the reference."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from docs_site import api, commands, conformance, schemas, tables, vocabulary

ROOT = Path(__file__).resolve().parents[1]
STYLES = Path(__file__).with_name("site.css")
HOME = "index.md"
BESIDE = {"README.md": "quickstart.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages of documents that are not in `docs/`."""
REFERENCE: Mapping[str, Callable[[], str]] = {
    "settings.md": schemas.settings,
    "commands.md": commands.page,
    "contracts.md": schemas.contracts,
    "configuration-files.md": schemas.configuration_files,
    "tables.md": tables.page,
    "vocabulary.md": vocabulary.page,
    "conformance.md": conformance.page,
    **{f"api/{room}.md": partial(api.page, room) for room in api.ROOMS},
}
"""Pages that are made from the code, below `reference/`."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "conformance.md")
"""Files in `docs/` that tools write there."""
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def write(folder: Path) -> None:
    """Write every page, and the files that pages link to, into a new folder."""
    shutil.copytree(ROOT / "docs", folder, ignore=_LEFT_OUT)
    sources = {page.relative_to(folder).as_posix(): f"docs/{page.relative_to(folder)}" for page in folder.rglob("*.md")}
    sources[HOME] = sources.pop("README.md")
    texts = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in sources.items()}
    (folder / "README.md").unlink()
    shutil.copy(STYLES, folder)
    for source, page in BESIDE.items():
        sources[page], texts[page] = source, (ROOT / source).read_text(encoding="utf-8")
    for name, make in REFERENCE.items():
        sources[f"reference/{name}"], texts[f"reference/{name}"] = f"docs/reference/{name}", make()
    for page, text in texts.items():
        written = folder / page
        written.parent.mkdir(parents=True, exist_ok=True)
        links = partial(_address, page=page, source=sources[page])
        written.write_text(_LINK.sub(links, text), encoding="utf-8")


def _address(link: re.Match[str], *, page: str, source: str) -> str:
    """Return a link's target in the site, whose top folder has the content of `docs/`."""
    target, anchor = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1])), link[2] or ""
    target = BESIDE.get(target, HOME if target == "docs/README.md" else target.removeprefix("docs/"))
    return posixpath.relpath(target, posixpath.dirname(page) or ".") + anchor
