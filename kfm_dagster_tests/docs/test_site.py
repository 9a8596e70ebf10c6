"""The documentation's site is complete, has the code's reference, and uses no other host."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
import sqlalchemy as sa

from docs_site.__main__ import SiteError, navigation
from docs_site.commands import MEANINGS
from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.contracts.issues import IntegrityIssue, MetadataIssue, ParseIssue, StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ExitCode
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.commands import commands
from kfm_dagster_tests.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:9"
"""A proxy that refuses all requests, so that the build cannot use the network."""


@dataclass
class Page(HTMLParser):
    """A built page: its ids, links, loaded addresses and text."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids |= {attributes[name] or "" for name in ("id", "name") if name in attributes}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"] or "")
        elif tag != "a":
            addresses = [
                attributes.get("src"),
                attributes.get("href"),
                attributes.get("data"),
                *(attributes.get("srcset") or "").split()[:1],
            ]
            self.loads += [address for address in addresses if address]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True)
class Site:
    """The site's folder, and its pages by their path."""

    folder: Path
    pages: Mapping[str, Page]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("docs") / "built"
    offline = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), NOWHERE)
    done = run_program(sys.executable, "-m", "docs_site", folder, folder=ROOT, **offline)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.strip() == str(folder / "site" / "index.html")
    pages = {}
    for path in (folder / "site").rglob("*.html"):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path.relative_to(folder / "site").as_posix()] = page
    return Site(folder / "site", pages)


def test_no_page_loads_content_of_another_host(site: Site) -> None:
    assert len(site.pages) > 80
    for name, page in site.pages.items():
        elsewhere = [address for address in page.loads if urlsplit(address).netloc]
        assert not elsewhere, name
    for styles in site.folder.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", styles.read_text(encoding="utf-8")), styles


def test_each_link_leads_to_an_existing_page_and_anchor(site: Site) -> None:
    broken = []
    for name, page in site.pages.items():
        if name == "404.html":  # served at any depth, so its addresses are absolute
            continue
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (site.folder / name).parent / unquote(parts.path) if parts.path else site.folder / name
            target = Path(os.path.normpath(target))
            target_page = site.pages.get(target.relative_to(site.folder).as_posix())
            anchor = unquote(parts.fragment)
            if not target.is_file() or (target_page and anchor and anchor not in target_page.ids):
                broken.append(f"{name}: {address}")
    assert not broken, "\n".join(broken)


def test_a_page_without_an_entry_and_an_entry_without_a_page_are_refused() -> None:
    places = [{"A": "a.md"}, {"B": ["b/*.md"]}]
    assert navigation(places, {"a.md", "b/1.md", "b/2.md"}) == [{"A": "a.md"}, {"B": ["b/1.md", "b/2.md"]}]
    for pages in ({"a.md", "c.md"}, {"b/1.md"}):
        with pytest.raises(SiteError, match=r"docs_site/mkdocs\.yml"):
            navigation(places, pages)


def test_each_setting_is_in_the_reference(site: Site) -> None:
    page = site.pages["reference/settings.html"]
    assert {f"kfm_{name}" for name in Settings.model_fields} <= page.ids
    for name, setting in Settings.model_fields.items():
        assert str(setting.description).replace("`", "") in page.text, name


def options(command: click.Command) -> set[str]:
    named = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return {name for name in named if name.startswith("-")} | {"--help", "-h"}


def test_the_reference_has_the_options_of_each_command_and_the_meaning_of_each_exit_code(site: Site) -> None:
    page = site.pages["reference/commands.html"]
    for path, command in commands():
        assert "-".join(("kfm", *path)) in page.ids, path
        for option in options(command):
            assert option in page.text, (path, option)
    assert set(MEANINGS) == set(ExitCode)


def test_the_reference_of_each_table_has_its_columns(site: Site, tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'kfm.db'}")
    inspector = sa.inspect(database.engine)
    text = site.pages["reference/tables.html"].text
    sections = dict(re.findall(r"^(\w+)¶$(.*?)(?=^\w+¶$|\Z)", text, re.MULTILINE | re.DOTALL))
    for table in {*inspector.get_table_names(), *inspector.get_view_names()} - {"schema_version"}:
        assert table in sections
        if table in inspector.get_table_names():
            for column in inspector.get_columns(table):
                assert column["name"] in sections[table].split(), (table, column["name"])
    database.dispose()


def test_each_contract_and_each_of_its_keys_is_in_the_reference(site: Site, contracts: ContractRegistry) -> None:
    page = site.pages["reference/contracts.html"]
    schema = DatasetContract.model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        for key in part.get("properties", {}):
            assert key in page.text
    for contract in contracts:
        assert f"../datasets.html#{contract.id}" in page.links


def test_each_code_is_in_the_reference(site: Site) -> None:
    words = site.pages["reference/vocabulary.html"].text.split()
    for codes in (ParseIssue, IntegrityIssue, MetadataIssue, StacIssue, LedgerCode, AlertRule):
        assert set(codes) <= set(words), codes


def test_each_clause_is_shown_with_its_tests(site: Site) -> None:
    text = site.pages["reference/conformance.html"].text
    for claimed in (
        "docs/test_wal_pages.py::test_each_field_has_its_documented_source_and_places",
        "integration/test_late_sidecar.py",
    ):
        assert f"kfm_dagster_tests/{claimed}\n" in text.replace("kfm_dagster_tests", "\nkfm_dagster_tests")


def shown() -> Iterator[tuple[str, str]]:
    """Yield each `kfm` command of the pages, with its page."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if command := re.match(r"(?:    |\$ )(kfm [a-z].*)", line):
                yield path.name, command[1]


def test_each_command_on_a_page_exists_with_its_options() -> None:
    tree = {("kfm", *path): command for path, command in commands()}
    wrong = []
    for page, line in shown():
        words = re.split(r"[|$#\\]", re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", line))[0].split()
        path = tuple(words[:1])
        while len(words) > len(path) and (*path, words[len(path)]) in tree:
            path = (*path, words[len(path)])
        attributes = {word.partition("=")[0] for word in words[len(path) :] if re.match(r"--?[a-z]", word)}
        is_incomplete = isinstance(tree[path], click.Group) and not tree[path].invoke_without_command
        if is_incomplete or attributes - options(tree[path]):
            wrong.append(f"{page}: {line}")
    assert not wrong, "\n".join(wrong)
