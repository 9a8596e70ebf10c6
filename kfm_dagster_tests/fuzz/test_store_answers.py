"""Store answers: any answer of a store for one object affects only the object's unit (SEC-09)."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.maintenance import maintain
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage import s3
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, WebServer, open_web_server
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.transactions import own_tx

ANSWERS = int(os.environ.get("KFM_STORE_ANSWERS", "24"))
"""Objects with odd answers in each dataset; `make soak` takes 10,000."""
SOUND, ODD = 4, 12
"""The number of objects of a batch that get S3's answers, and of those that get odd answers."""

STATUSES = (200, 204, 206, 299, 301, 304, 307, 400, 401, 403, 404, 405, 409, 412, 416, 418, 429, 500, 503, 599, 999)
TIMES = ("", "yesterday", "Wed, 03 Dec 2025 00:04:20 -0000", "Wed, 03 Dec 99999 00:04:20 GMT", "Thu, 01 Jan 1970")
TOTALS = ("*", "0", "-1", "7", str(2**63 - 1), str(2**63), str(10**30), "9" * 5000, "\xb2")
RANGES = ("", "bytes", "bytes 0-0/1", "bytes 7-3/9", "items 0-9/10", *(f"bytes 0-127/{total}" for total in TOTALS))
TEXTS = ("", '"', 'W/"0123"', '"\xff"', "\xe9" * 200, "e" * 9000, "text/html; charset=\xfe", "../../etc", "%00%0a")
LOCATIONS = ("", "/", "http://127.0.0.1:1/", "file:///etc/passwd", "http://[", "\xff")
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Last-Modified": TIMES,
    "Content-Range": RANGES,
    "Content-Length": TOTALS,
    "ETag": TEXTS,
    "Content-Type": TEXTS,
    "Content-Encoding": ("gzip", "br", "\xff"),
    "Transfer-Encoding": ("chunked", "gzip"),
    "Location": LOCATIONS,
    "x-amz-bucket-region": ("", "eu-west-1", "\xff" * 40),
}
BODIES = ("right", "empty", "half", "twice", "noise", "page")


@dataclass(frozen=True)
class Oddity:
    """Differences from S3's answers for one object, from request number `since` on."""

    since: int
    status: int | None
    headers: Mapping[str, str | None]
    body: str

    def __call__(self, right: WebAnswer) -> WebAnswer:
        headers = {**right.headers, **self.headers}
        body = {
            "right": right.body,
            "empty": b"",
            "half": right.body[: len(right.body) // 2],
            "twice": right.body * 2,
            "noise": random.Random(len(right.body)).randbytes(len(right.body)),
            "page": b"<html><body>sign in</body></html>",
        }[self.body]
        named = {name: value for name, value in headers.items() if value is not None}
        return WebAnswer(status=self.status or right.status, headers=named, body=body)


HEADER = st.sampled_from(sorted(HEADERS)).flatmap(
    lambda name: st.tuples(st.just(name), st.none() | st.sampled_from(HEADERS[name]))
)
ODDITY = st.builds(
    Oddity,
    st.integers(0, 3),
    st.none() | st.sampled_from(STATUSES),
    st.lists(HEADER, max_size=3).map(dict),
    st.sampled_from(BODIES),
)

ONCE_FATAL = [
    *(Oddity(0, None, {"Last-Modified": time}, "right") for time in TIMES[1:4]),
    *(Oddity(0, None, {"Content-Range": f"bytes 0-127/{total}"}, "right") for total in TOTALS[5:8]),
    *(Oddity(0, None, {name: TEXTS[3]}, "right") for name in ("ETag", "Content-Type")),
    Oddity(0, 416, {}, "empty"),
    Oddity(1, 301, {"Location": LOCATIONS[2]}, "right"),
    Oddity(0, None, {"Content-Encoding": "br"}, "half"),
    Oddity(1, 206, {"Content-Length": TOTALS[2]}, "noise"),
]
"""Each kind of answer that once failed a whole run; every run of the test has these answers."""


class Store:
    """S3 over HTTP, with an oddity for some keys."""

    def __init__(self, server: WebServer) -> None:
        self.server = server
        self.objects: dict[str, bytes] = {}
        self.odd: dict[str, Oddity] = {}
        self.requests: dict[str, int] = {}
        server.answers = self._answer

    def _answer(self, request: WebRequest) -> WebAnswer:
        path = request.path.split("?")[0]
        number = self.requests[path] = self.requests.get(path, -1) + 1
        odd = self.odd.get(path.removesuffix(".idx"))
        right = self._right(path, request)
        return right if odd is None or number < odd.since else odd(right)

    def _right(self, path: str, request: WebRequest) -> WebAnswer:
        if (content := self.objects.get(path)) is None:
            return WebAnswer(status=404)
        headers = {
            "ETag": f'"{hashlib.md5(content).hexdigest()}"',
            "Last-Modified": "Thu, 03 Apr 2025 00:00:00 GMT",
            "Content-Type": "binary/octet-stream",
        }
        if (byte_range := request.headers.get("range")) is None:
            return WebAnswer(headers=headers, body=content)
        first, last = (int(part) for part in byte_range.removeprefix("bytes=").split("-"))
        if first >= len(content):
            return WebAnswer(status=416)
        body = content[first : last + 1]
        headers["Content-Range"] = f"bytes {first}-{first + len(body) - 1}/{len(content)}"
        return WebAnswer(status=206, headers=headers, body=body)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with open_web_server() as server:
        yield Store(server)


def hrrr(count: int) -> Iterator[tuple[chain.StoredObject, bytes | None]]:
    run = datetime.combine(chain.DAY, time(6), UTC)
    for lead in range(count):
        key, content, index = make_hrrr(run=run, lead=lead)
        yield chain.good("noaa-hrrr-bdp-pds", key, content), index.encode()


def radar(count: int) -> Iterator[tuple[chain.StoredObject, bytes | None]]:
    yield from ((volume, None) for volume in chain.volumes(count))


@pytest.mark.clause("SEC-09")
@pytest.mark.parametrize(("dataset", "samples"), [("nexrad-l2", radar), ("hrrr", hrrr)])
def test_an_odd_answer_for_an_object_affects_only_the_object_s_unit(
    dataset: str,
    samples: type,
    store: Store,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.server.url(""))
    monkeypatch.setattr(s3, "MAX_RETRIES", 0)
    objects = list(samples(SOUND + ODD))
    for item, index in objects:
        store.objects[f"/{item.bucket}/{item.key}"] = item.announced
        if index is not None:
            store.objects[f"/{item.bucket}/{item.key}.idx"] = index

    @settings(
        max_examples=max(1, ANSWERS // ODD),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # No shrinking: a chain takes a second, and the failing unit shows its oddity.
        phases=[Phase.explicit, Phase.generate],
    )
    @example(oddities=ONCE_FATAL)
    @given(oddities=st.lists(ODDITY, min_size=ODD, max_size=ODD))
    def ingest(oddities: list[Oddity]) -> None:
        odd = [item for item, _ in objects[SOUND:]]
        store.requests.clear()
        store.odd = {f"/{item.bucket}/{item.key}": oddity for item, oddity in zip(odd, oddities, strict=True)}
        _ingest(tmp_path_factory.mktemp("home"), dataset, [item for item, _ in objects])

    ingest()


def _ingest(home: Path, dataset: str, objects: list[chain.StoredObject]) -> None:
    pipeline = chain.open_pipeline(home, None, anonymous=True)
    chain.take(pipeline, *(chain.announce([item.event()], registry=pipeline.registry) for item in objects))
    chain.run_chain(pipeline, dataset, chain.PARTITION, "run-1", Source.LEDGER)
    status = {record.object_uri: record.status for record in own_tx(pipeline.ledger).find(dataset=dataset, limit=100)}
    assert {status[item.uri] for item in objects[:SOUND]} == {Status.SUCCEEDED}
    chain.work_until_done(pipeline)
    warnings: list[str] = []
    maintain(pipeline, ProcessState(), dead=lambda _: (), warn=warnings.append)
    EvidenceCollector(pipeline).collect()
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    assert (warnings, cases.due(limit=1)) == ([], [])
    assert len(cases.find(CaseState.OPEN)) == own_tx(pipeline.ledger).counts()[dataset][Status.QUARANTINED]
