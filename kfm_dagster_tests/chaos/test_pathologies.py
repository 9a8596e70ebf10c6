"""The corpus of NODD pathologies, each run through the whole chain."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_injection.pathologies import pathologies
from fault_injection.producer import Disorder, Producer, disordered
from fault_injection.scenarios import Pathology, Version, play
from kfm_dagster.contracts.envelope import CLOSED
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster_tests.integration import chain, traces
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

CORPUS = {pathology.name: pathology for pathology in pathologies()}
NAMED = {
    "duplicate", "late", "out of order", "rewritten in place", "truncated", "zero-byte", "stale sidecar",
    "same scan, another creation time", "moved bucket", "volume that never ends",
    "volume that never ends, in chunks",
}  # fmt: skip
"""The list of clause BEY-09."""


@pytest.mark.clause("BEY-09", "BEY-03")
@pytest.mark.parametrize("name", CORPUS)
def test_a_pathology_has_its_expected_result(
    name: str, pipeline: Pipeline, queue: chain.FakeQueue, objects: Path
) -> None:
    pathology = CORPUS[name]
    sent: list[SqsMessage] = []

    def store(bucket: str, key: str, content: bytes) -> None:
        chain.put(objects, [chain.good(bucket, key, content)])

    def send(body: str) -> None:
        sent.append(chain.raw_message(body, name=f"{name} {len(sent)}"))
        chain.take(pipeline, sent[-1])

    play(pathology, registry=pipeline.registry, put=store, send=send, drain=lambda: chain.work_until_done(pipeline))

    records = {(record.object_uri, record.object_version): record for record in own_tx(pipeline.ledger).find(limit=100)}
    statuses = {identity: (record.status, record.last_error_code) for identity, record in records.items()}
    expected = {
        (fate.version.uri, _announced(fate.version, pipeline)): (fate.status, fate.code) for fate in pathology.fates
    }
    assert statuses == expected | {(version.uri, CLOSED): (Status.SUCCEEDED, None) for version in pathology.closed}
    items = traces.items(Path(pipeline.settings.catalog)) if pathology.shown else {}
    shown = {uri: item["assets"]["data"]["file:checksum"].removeprefix("d50110") for uri, item in items.items()}
    assert shown == {version.uri: version.etag for version in pathology.shown}
    closed = {uri: item["properties"]["nexrad:closed-by"] for uri, item in items.items() if _is_closed(item)}
    assert closed == dict.fromkeys((version.uri for version in pathology.closed), "a later volume of the radar")
    rejected = [rejection.reason_code for rejection in pipeline.deliveries.rejected()]
    assert rejected == [issue.value for issue in pathology.rejected]
    _assert_lineage_once(pathology, pipeline)
    # All messages are deleted except the rejected ones, which SQS moves to the dead-letter queue.
    assert len(set(queue.deleted)) == len(sent) - len(pathology.rejected)
    assert [seconds for _, seconds in queue.visibility].count(0) >= len(pathology.rejected)


def _announced(version: Version, pipeline: Pipeline) -> str | None:
    """Return the version in the ledger: the ETag, or None for a chunk."""
    contract = pipeline.registry.route(bucket=version.bucket, key=version.key).contract
    return version.etag if contract.notifications.names_versions else None


def _is_closed(item: dict[str, Any]) -> bool:
    return bool(item["properties"].get("nexrad:closed"))


def _assert_lineage_once(pathology: Pathology, pipeline: Pipeline) -> None:
    """Check that lineage has each succeeded version once, and no other version."""
    chain.assert_conserved(pipeline)
    events, _ = traces.published_once(pipeline)
    complete = Counter(source for kind, _, source, *_ in events if kind == "COMPLETE")
    succeeded = [fate.version for fate in pathology.fates if fate.status is Status.SUCCEEDED]
    assert complete == Counter(version.uri for version in (*succeeded, *pathology.closed))


def test_the_corpus_has_every_pathology_of_the_clause() -> None:
    assert set(CORPUS) >= NAMED
    assert len(CORPUS) == len(pathologies())


SHARES = st.floats(min_value=0, max_value=1)
DISORDERS = st.builds(
    Disorder, seed=st.integers(), duplicate=SHARES, late=SHARES, displaced=st.integers(min_value=0, max_value=20)
)


@given(count=st.integers(min_value=0, max_value=60), disorder=DISORDERS)
def test_a_disorder_repeats_and_displaces_events_within_its_bounds(count: int, disorder: Disorder) -> None:
    timely, late = disordered(range(count), disorder)
    deliveries = Counter(timely) + Counter(late)
    assert set(deliveries) == set(range(count))
    assert set(deliveries.values()) <= {1, 2}
    assert disordered(range(count), disorder) == (timely, late)
    for index, event in enumerate(timely):
        assert all(event <= later + disorder.displaced for later in timely[index:])


def test_a_wrong_disorder_is_refused() -> None:
    for wrong in [{"duplicate": -0.1}, {"duplicate": 1.1}, {"late": -0.1}, {"late": 1.1}, {"displaced": -1}]:
        with pytest.raises(ConfigurationError, match="a disorder is wrong"):
            Disorder(**wrong)


def test_late_events_are_announced_after_the_pause() -> None:
    events = [item.event() for item in chain.volumes(12)]
    disorder = Disorder(seed=3, duplicate=0.5, late=0.3)
    feed = Mock()
    feed.announce.side_effect = len
    messages = Producer(feed, disorder, sleep=feed.sleep).announce(events, late_by_seconds=90)
    timely, late = disordered(events, disorder)
    assert feed.mock_calls == [call.announce(timely), call.sleep(90), call.announce(late)]
    assert messages == len(timely) + len(late) > len(events)
