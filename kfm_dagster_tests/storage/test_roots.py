"""Roots of files: the first deployment marks an empty root, and other deployments are refused."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.errors import ForeignRootError
from kfm_dagster.settings import Settings
from kfm_dagster.storage.answering import PROBE
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.roots import MARKER, Root, deployment_id, hold, refuse_foreign, roots

pytestmark = pytest.mark.clause("SEC-11")

ONE, OTHER = "1" * 32, "2" * 32
BUCKET = "kfm-roots"


@pytest.fixture(params=["folder", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder or bucket for roots."""
    if request.param == "folder":
        return str(tmp_path / "location")
    aws: EmbeddedCloud = request.getfixturevalue("aws")
    aws.client("s3").create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


def root(location: str, name: str = "catalog") -> Root:
    return Root(name=name, setting="KFM_CATALOG_URL", location=f"{location}/{name}")


def put(root: Root, path: str, content: bytes = b"{}") -> None:
    open_store(root.location).put(path, content)


def test_an_empty_root_is_marked_by_the_first_deployment_and_by_no_other_deployment(location: str) -> None:
    catalog = root(location)
    assert refuse_foreign([catalog], OTHER) == [catalog]
    assert (catalog.holder(), catalog.is_empty()) == (None, True)
    hold([catalog], ONE)
    hold([catalog], ONE)
    put(catalog, "catalog.json")
    assert refuse_foreign([catalog], ONE) == []
    for adopt in (False, True):
        with pytest.raises(ForeignRootError, match=f"{catalog.location} is another deployment's; observed {ONE}"):
            hold([catalog], OTHER, adopt=adopt)
    catalog.mark(OTHER)  # as a process that saw the root empty before ONE marked it
    assert catalog.holder() == ONE


def test_an_unmarked_root_with_files_is_adopted_only_on_request(location: str) -> None:
    catalog = root(location)
    put(catalog, "goes-abi/2025/2025-04-02/item.json")
    with pytest.raises(ForeignRootError, match=r"has files and no .* next: .*kfm init --adopt"):
        hold([catalog], ONE)
    assert catalog.holder() is None
    hold([catalog], ONE, adopt=True)
    assert catalog.holder() == ONE


def test_no_root_is_marked_if_one_of_several_is_refused(location: str) -> None:
    empty, foreign, full = root(location, "storage"), root(location), root(location, "lineage")
    hold([foreign], ONE)
    put(full, "prov/a.jsonld")
    for refused in (foreign, full):
        with pytest.raises(ForeignRootError):
            hold([empty, refused], OTHER)
    assert (empty.holder(), full.holder()) == (None, None)


@pytest.mark.parametrize("path", [PROBE, f"inner/{MARKER}", ".staging/tmp1/0"])
def test_a_root_with_only_probes_inner_marks_or_unfinished_files_counts_as_empty(location: str, path: str) -> None:
    catalog = root(location)
    put(catalog, path)
    hold([catalog], ONE)
    assert catalog.holder() == ONE


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff"])
def test_a_root_with_an_invalid_mark_is_refused_to_every_deployment(location: str, content: bytes) -> None:
    catalog = root(location)
    put(catalog, MARKER, content)
    with pytest.raises(ForeignRootError, match="observed an unreadable id"):
        hold([catalog], ONE, adopt=True)


def test_one_of_two_concurrent_deployments_gets_an_empty_root(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, both = root(location), threading.Barrier(2, timeout=30)
    is_empty = Root.is_empty

    def is_empty_in_step(self: Root) -> bool:
        seen_state = is_empty(self)
        both.wait()
        return seen_state

    monkeypatch.setattr(Root, "is_empty", is_empty_in_step)

    def try_to_hold(deployment: str) -> str | None:
        try:
            hold([catalog], deployment)
        except ForeignRootError:
            return None
        return deployment

    with ThreadPoolExecutor(2) as pool:
        holders = [holder for holder in pool.map(try_to_hold, (ONE, OTHER)) if holder]
    assert holders == [catalog.holder()]


def test_a_process_is_admitted_while_another_process_of_the_deployment_writes_the_mark(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = root(location)
    is_empty = Root.is_empty

    def is_empty_after_the_mark(self: Root) -> bool:
        self.mark(ONE)
        put(self, "catalog.json")
        return is_empty(self)

    monkeypatch.setattr(Root, "is_empty", is_empty_after_the_mark)
    hold([catalog], ONE)
    assert catalog.holder() == ONE


def test_every_database_is_created_with_its_own_id(empty_database_url: str, tmp_path: Path) -> None:
    ids = []
    for url in (empty_database_url, empty_database_url, f"sqlite:///{tmp_path / 'other.db'}"):
        database = Database.open(url)
        ids.append(deployment_id(database))
        database.dispose()
    assert ids[0] == ids[1] != ids[2]


def test_every_location_that_a_deployment_writes_is_a_root(tmp_path: Path) -> None:
    chosen = {f"{name}_url": f"s3://b/{name}" for name in ("storage", "catalog", "lineage", "virtual")}
    every = roots(Settings(home=tmp_path, **chosen))
    assert [root.location for root in every] == list(chosen.values())
    assert [root.setting for root in every] == [f"KFM_{name.upper()}" for name in chosen]
    assert len(roots(Settings(home=tmp_path))) == 3
