"""After any crash or error, the next run and the catalog's followers reach the same state as without the error."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pystac
import pytest

import kfm_dagster as kfm
from benchmarks.stac_api_server import stac_api_server
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import Retry
from kfm_dagster.demo.samples.goes_abi import make_goes_abi
from kfm_dagster.errors import KfmError
from kfm_dagster.followers.stac_api.follower import PgstacFollower
from kfm_dagster.ingest.chain import roll_back
from kfm_dagster.ingest.nodes import MessageParse, Settle, Source, StacRegister, chain, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.run_state.delta_store import DeltaRunState
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.stages.audit import verify_chain
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.databases import BOTH_DATABASES
from kfm_dagster_tests.followers.announcements.changes import subscribed
from kfm_dagster_tests.followers.announcements.web_server import WebServer
from kfm_dagster_tests.followers.geoparquet.test_geoparquet import published
from kfm_dagster_tests.followers.stac_api.api import Api
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DATASET,
    PARTITION,
    CrashError,
    FakeQueue,
    StoredObject,
    assert_conserved,
    deliver,
    deliver_each,
    good,
    missing,
    node,
    notify_each,
    put,
    run_chain,
    run_pending,
    truncated,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

ITEMS = [*volumes(2), missing(volumes(3)[2]), truncated(volumes(4)[3])]
"""Two volumes that succeed and two that end in quarantine."""


def everything(pipeline: Pipeline) -> dict[str, Any]:
    return {**traces.everything(pipeline), "messages": pipeline.deliveries.counts()}


@pytest.mark.clause("WAL-05", "WAL-06")
def test_a_second_ingest_changes_nothing(pipeline: Pipeline, objects: Path) -> None:
    put(objects, ITEMS[:2])
    run_chain(pipeline, "nexrad-l2", PARTITION, "run-1", Source.LISTING)
    catalog = Path(pipeline.settings.catalog)

    def left() -> tuple[Any, ...]:
        versions = {uri: record.version for uri, record in traces.records(pipeline).items()}
        return {**everything(pipeline), "messages": None}, trees.files(catalog), versions

    before = left()

    for number, source in enumerate(Source, start=2):
        batch = run_chain(pipeline, "nexrad-l2", PARTITION, f"run-{number}", source)
        if source is Source.LISTING:
            assert (batch.skipped, batch.applied_by) == (SkipCause.CONTENT_APPLIED, "run-1")
        else:
            assert not batch.envelopes
    notify_each(pipeline, *ITEMS[:2])
    work_until_done(pipeline)
    assert left() == before


@pytest.mark.clause("RSP-18")
def test_repeating_a_finished_run_under_another_contract_keeps_its_run_state(pipeline: Pipeline) -> None:
    deliver_each(pipeline, *ITEMS)
    run_pending(pipeline, "run-1")
    records = pipeline.stages.run_states.of_run("run-1")
    before = everything(pipeline)
    stricter = Retry(max_attempts=1, backoff=pipeline.registry["nexrad-l2"].retry.backoff)
    pipeline.registry = ContractRegistry.of(
        contract.model_copy(update={"retry": stricter}) for contract in pipeline.registry
    )
    skips: list[SkipCause | None] = []
    run_pending(pipeline, "run-1", seen=lambda batch: skips.append(batch.skipped))
    assert skips == [SkipCause.OTHER_INPUTS] * len(operators())
    assert pipeline.stages.run_states.of_run("run-1") == records
    assert everything(pipeline) == before


@pytest.mark.clause("RSP-18")
def test_a_repeated_settlement_counts_as_lost_only_successes_of_another_run(pipeline: Pipeline) -> None:
    deliver(pipeline, *volumes(2))
    batch = run_pending(pipeline, "run-1")
    first = own_tx(pipeline.ledger).settle(list(batch.envelopes), run_id="run-1")
    second = own_tx(pipeline.ledger).settle(list(batch.envelopes), run_id="run-2")
    assert (len(batch.envelopes), first.lost, len(second.lost)) == (2, (), 2)


RUN = "8a1c1a52-6b8f-4e56-9d5c-000000000001"


@pytest.mark.clause("RSP-07", "RSP-10")
@pytest.mark.parametrize(
    ("prefix", "store", "operator"),
    [
        *(("", ObjectRunState, operator) for operator in operators()),
        ("delta+", DeltaRunState, StacRegister.operator),
    ],
)
def test_a_run_that_is_resumed_after_a_crash_leaves_each_result_once(
    make_pipeline: Callable[..., Pipeline],
    objects: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    store: Any,
    operator: str,
) -> None:
    put(objects, volumes(2))
    pipeline = make_pipeline(run_state=f"{prefix}{tmp_path / 'runs'}")
    put_record = store.put

    def dies(self: Any, record: Any, tx: Any) -> None:
        if record.dataset_id == f"{DATASET}.{operator}":
            tx.after_commit(lambda: (_ for _ in ()).throw(CrashError(operator)))
        put_record(self, record, tx)

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", dies)
        with pytest.raises(CrashError):
            run_chain(pipeline, DATASET, PARTITION, RUN)
    assert pipeline.stages.run_states.get(f"{DATASET}.{operator}", RUN) is None

    run_chain(pipeline, DATASET, PARTITION, RUN)
    # If message_parse crashed, its claimed batch is lost, and its units are released once their lease has expired.
    pipeline.clock.forward(3600)
    own_tx(pipeline.ledger).release_lost()
    work_until_done(pipeline)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 2}
    traces.assert_once(traces.events(Path(pipeline.settings.lineage)))
    states = pipeline.stages.run_states.of_run(RUN)
    assert {state.dataset_id for state in states} == {f"{DATASET}.{name}" for name in operators()}
    assert {state.outcome for state in states} <= {Outcome.SUCCESS, Outcome.SKIPPED}
    tree = traces.catalog_tree(Path(pipeline.settings.catalog))

    run_chain(pipeline, DATASET, PARTITION, RUN)
    assert pipeline.stages.run_states.of_run(RUN) == states
    assert traces.catalog_tree(Path(pipeline.settings.catalog)) == tree


RUNS, UNITS_EACH = ("one", "two"), 3


@pytest.mark.clause("IEN-08")
@BOTH_DATABASES
def test_two_concurrent_commits_leave_one_current_output_per_stage(
    make_pipeline: Callable[..., Pipeline], database_url: str, queue: FakeQueue
) -> None:
    pipelines = [make_pipeline(url=database_url, queue=queue) for _ in RUNS]
    items = volumes(len(RUNS) * UNITS_EACH)
    deliver(pipelines[0], *items)
    together = threading.Barrier(len(RUNS), timeout=120)

    def run(pipeline: Pipeline, run_id: str) -> None:
        batch: StageBatch | None = None
        try:
            for kind in chain():
                first = {"limit": UNITS_EACH} if kind is MessageParse else {}
                stage = pipeline.stages.run(node(pipeline, kind, run_id, **first), run_id=run_id, upstream=batch)
                together.wait()
                batch = pipeline.stages.commit(stage)
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(len(RUNS)) as pool:
        for ended in [pool.submit(run, *each) for each in zip(pipelines, RUNS, strict=True)]:
            ended.result()
    assert_conserved(pipelines[0])
    assert traces.statuses(pipelines[0]) == {Status.SUCCEEDED: len(items)}
    for operator in operators():
        name = f"{DATASET}.{operator}@{PARTITION}"
        earlier, later = sorted(pipelines[0].nodes.outputs_of(name), key=lambda output: output.valid_to is None)
        assert (earlier.valid_to is None, later.valid_to) == (False, None)
        assert pipelines[0].nodes.newest(name) == later
    trees.assert_consistent(Path(pipelines[0].settings.catalog))
    verify_chain(pipelines[0].stages.lifecycle.store.audit.lines())


GOES, GOES_DAY = "goes-abi", "2025-06-01"


def scan(minute: int) -> StoredObject:
    start = datetime(2025, 6, 1, 12, minute, tzinfo=UTC)
    return good("noaa-goes19", *make_goes_abi(product="ABI-L1b-RadM1", start=start, satellite=19, band=13))


@pytest.fixture
def api_server(stac_api_url: str) -> Iterator[str]:
    """Serve a STAC API over the database."""
    with stac_api_server(stac_api_url) as url:
        yield url


def shown(pipeline: Pipeline, virtual: Path, stac_api_url: str) -> dict[str, Any]:
    """Return the catalog's files and each follower's content; for the virtual stores, the day's list of stores."""
    root = Path(pipeline.settings.catalog)
    [follower] = [candidate for candidate in pipeline.followers if isinstance(candidate, PgstacFollower)]
    api = Api(stac_api_url, pipeline.database, root, follower)
    stores = json.loads((virtual / GOES / "2025" / GOES_DAY / "stores.json").read_bytes())["stores"]
    return {
        "tree": trees.files(root),
        "geoparquet": published(FolderPublisher(root)),
        "stac_api": sorted(map(str, api.searched(collections=[GOES]))),
        "virtual": stores,
    }


def read_by_clients(root: Path, api: str) -> dict[str, list[str]]:
    """Return what common clients read: ids of Items, and the scan times of the virtual store."""
    import xarray
    from pystac_client import Client

    [store] = kfm.stores(GOES, catalog=str(root))
    options = {"fo": store.assets["references"].href, "remote_protocol": "file"}
    with xarray.open_dataset("reference://", engine="zarr", storage_options=options) as scans:
        times = [str(time) for time in scans["t"].values]
    files = root / GOES / "items" / "*" / "*.parquet"
    rows = duckdb.read_parquet(str(files), union_by_name=True).project("id").fetchall()
    return {
        "pystac": sorted(
            item.id for item in pystac.Catalog.from_file(str(root / "catalog.json")).get_items(recursive=True)
        ),
        "duckdb": sorted(name for (name,) in rows),
        "pystac_client": sorted(item.id for item in Client.open(api).search(collections=[GOES]).items()),
        "xarray": times,
    }


@pytest.mark.clause("OPR-10", "OPR-22", "OPR-23", "PCS-03")
def test_a_rolled_back_run_leaves_every_follower_unchanged(
    make_pipeline: Callable[..., Pipeline],
    objects: Path,
    tmp_path: Path,
    stac_api_url: str,
    api_server: str,
    web_server: WebServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual = tmp_path / "virtual"
    configs = subscribed(tmp_path / "configs", f'webhook: "{web_server.url()}"')
    pipeline = make_pipeline(geoparquet=True, virtual_url=str(virtual), stac_api_dsn=stac_api_url, configs_dir=configs)
    put(objects, [scan(0)])
    run_chain(pipeline, GOES, GOES_DAY, "first")
    root = Path(pipeline.settings.catalog)
    before, alone = shown(pipeline, virtual, stac_api_url), read_by_clients(root, api_server)
    assert {name: len(ids) for name, ids in alone.items()} == dict.fromkeys(alone, 1)

    put(objects, [scan(1), scan(2)])
    with monkeypatch.context() as patched:
        patched.setattr(Settle, "transform", Mock(side_effect=KfmError("injected")))
        with pytest.raises(StageFailedError) as failed:
            run_chain(pipeline, GOES, GOES_DAY, "second")
    # A tick between failure and rollback publishes the new Items to every follower, because the catalog has them.
    pipeline.following.catch_up(pipeline.followers)
    between = shown(pipeline, virtual, stac_api_url)
    assert all(between[name] != before[name] for name in before)
    together = read_by_clients(root, api_server)
    assert {name: len(ids) for name, ids in together.items()} == dict.fromkeys(alone, 3)
    settle = Settle(pipeline=pipeline, dataset=GOES, partition=GOES_DAY, run_id="second")
    assert roll_back(settle, failed.value) is not None
    pipeline.following.catch_up(pipeline.followers)

    assert shown(pipeline, virtual, stac_api_url) == before
    assert read_by_clients(root, api_server) == alone
    events = [json.loads(body) for *_, body in web_server.requests]
    kinds = [event["type"].rpartition(".")[2] for event in events]
    assert kinds == ["created", "created", "created", "withdrawn", "withdrawn"]
    assert {event["subject"] for event in events[1:3]} == {event["subject"] for event in events[3:]}
    assert {state.last_error for state in pipeline.following.states()} == {None}
