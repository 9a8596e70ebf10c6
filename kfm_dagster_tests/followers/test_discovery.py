"""Followers of other packages get the catalog's changes even if one of them fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.catalog.follower_sources import GROUP, FollowerContext, FollowerSources
from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests.catalog.conftest import Write
from kfm_dagster_tests.catalog.envelopes import goes, nexrad
from kfm_dagster_tests.followers.announcements.changes import subscribed
from kfm_dagster_tests.ledger.bench import Clock
from kfm_dagster_tests.transactions import own_tx

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "concepts" / "catalog-and-followers.md").read_text(encoding="utf-8")
[TIMES] = re.findall(r"(?s)```python\n(.*?)```", PAGE)
SOURCE = """
from kfm_dagster.catalog.follower_sources import FollowerSource
class Broken(FollowerSource):
    def followers(self, context):
        raise RuntimeError("no library")
    """
BROKEN = {
    "raises when it is imported": "raise RuntimeError('no library')",
    "is not a source": "Broken = dict",
    "is not a class": "Broken = None",
    "raises when it is created": SOURCE + "def __init__(self, settings, registry): raise RuntimeError('no library')",
}

LoadSources = Callable[..., tuple[FollowerSources, list[Any]]]


def installed(
    folder: Path, patch: pytest.MonkeyPatch, name: str, text: str | None = None, kind: str = "Broken"
) -> None:
    """Install a package with a follower's entry point and one module; without `text`, the module is missing."""
    place = folder / f"installed-{name}"
    metadata = place / f"{name}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}:{kind}\n")
    if text is not None:
        (place / f"{name}.py").write_text(text)
    patch.delitem(sys.modules, name, raising=False)
    patch.syspath_prepend(place)


@pytest.fixture
def load_sources(database: Database, contracts: ContractRegistry, root: Path, clock: Clock) -> LoadSources:
    """Return a function that loads the installed sources and followers with given settings."""

    def make(**settings: Any) -> tuple[FollowerSources, list[Any]]:
        sources = FollowerSources.load(Settings(**{"geoparquet": True, **settings}), contracts)
        context = FollowerContext(
            database=database, catalog=FolderPublisher(root), objects=ObjectStores(anonymous=True), clock=clock
        )
        return sources, sources.followers(context)

    return make


@pytest.mark.clause("OPR-13")
def test_a_follower_of_another_package_gets_every_change(
    load_sources: LoadSources,
    catalog: Catalog,
    contracts: ContractRegistry,
    following: FollowerRunner,
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown() -> dict[str, str]:
        return {path.name: path.read_text() for path in tmp_path.glob("times/goes-abi/*")}

    installed(tmp_path, monkeypatch, "item_times", TIMES, "ItemTimes")
    assert [follower.name for follower in load_sources()[1]] == ["geoparquet"]
    assert load_sources(geoparquet=False)[1] == []
    monkeypatch.setenv("ITEM_TIMES", str(tmp_path / "times"))
    [follower] = [source for source in load_sources()[1] if source.name == "item-times"]
    items = [result.item_id for result in write("run", goes(0), goes(1), nexrad())]
    following.catch_up([follower])
    assert set(shown()) == set(items[:2])
    before = shown()
    (tmp_path / "times" / "goes-abi" / "stray").touch()
    following.rebuild(follower, contracts["goes-abi"])
    assert shown() == before
    own_tx(catalog).undo("goes-abi", "run")
    following.catch_up([follower])
    assert shown() == {}


@pytest.mark.clause("OPR-22")
@pytest.mark.one_database
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_only_the_follower_that_cannot_be_loaded_is_left_out(
    load_sources: LoadSources,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    installed(tmp_path, monkeypatch, "broken", text)
    sources, followers = load_sources()
    assert [follower.name for follower in followers] == ["geoparquet"]
    assert list(sources.errors) == ["broken"]
    [line] = [record.getMessage() for record in caplog.records]
    assert line == f"follower broken is left out: {sources.errors['broken']}"
    assert line.startswith("follower broken is left out: broken:Broken: ")


@pytest.mark.clause("OPR-22")
@pytest.mark.one_database
def test_a_source_that_cannot_create_its_followers_is_left_out_and_dependent_followers_come_last(
    load_sources: LoadSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The source can be loaded, but its method `followers` raises.
    installed(tmp_path, monkeypatch, "broken", SOURCE + "pass")
    target = "sqs: 'https://sqs.example.org/1/q'"
    sources, followers = load_sources(configs_dir=subscribed(tmp_path / "configs", target, ", after: [geoparquet]"))
    assert [follower.name for follower in followers] == ["geoparquet", "announcements.one"]
    assert list(sources.loaded) == ["announcements", "broken", "geoparquet", "stac-api", "virtual-zarr"]
    assert sources.errors == {}


def test_a_wrong_configuration_of_a_source_is_refused_before_the_database_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from kfm_dagster.errors import ConfigurationError\n" + SOURCE
    text += "def __init__(self, settings, registry): raise ConfigurationError('wrong ITEM_TIMES')"
    installed(tmp_path, monkeypatch, "refusing", text)
    with pytest.raises(ConfigurationError, match="wrong ITEM_TIMES"):
        Pipeline.open(Settings(home=tmp_path / "home"))
    assert not (tmp_path / "home").exists()
