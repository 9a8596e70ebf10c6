"""The objects of a benchmark, in a folder ROOT/bucket/key, and the messages that announce them.

Belongs here: the choice of samples, and their files: small, or of real size with their sidecars. Does not belong here:
reading and serving them (`store.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path

from benchmarks.real_size import STRETCH, hrrr_index
from benchmarks.store_server import keep_etag
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.feed import ObjectEvent, topic_of
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.hrrr import hrrr_samples, make_hrrr
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.errors import ConfigurationError

Samples = Callable[[date, int], Iterator[tuple[str, str, bytes]]]

DAY = date(2025, 4, 2)
SAMPLES: dict[str, Samples] = {
    "goes-abi": goes_abi_samples,
    "nexrad-l2": nexrad_level2_samples,
    "hrrr": hrrr_samples,
}
_HRRR_KEY = re.compile(r"hrrr\.(\d{8})/(\w+)/hrrr\.t(\d\d)z\.wrf([a-z]+)f(\d\d)")


def samples_of(dataset: str) -> Samples:
    """Return the maker of a dataset's samples. Raises ConfigurationError if there is none."""
    if dataset not in SAMPLES:
        raise ConfigurationError(
            "no samples of this dataset", observed=dataset, expected="one of " + ", ".join(SAMPLES)
        )
    return SAMPLES[dataset]


def make_objects(root: Path, dataset: str, units: int, *, day: date = DAY, real_size: bool = False) -> list[str]:
    """Write the objects below root, and return the SNS envelopes that announce them."""
    registry = ContractRegistry.load()
    bodies = []
    for number, (bucket, key, content) in enumerate(samples_of(dataset)(day, units)):
        path = root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if real_size:
            _write_stretched(path, dataset, key, content)
            etag = keep_etag(path)
        else:
            path.write_bytes(content)
            etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
        size = path.stat().st_size
        event = ObjectEvent(bucket=bucket, key=key, size=size, etag=etag, event_time=datetime.now(UTC))
        bodies.append(_envelope(topic_of(registry, bucket), event, number))
    return bodies


def _envelope(topic: str, event: ObjectEvent, number: int) -> str:
    return json.dumps(
        {
            "Type": "Notification",
            "MessageId": f"bench-{number}",
            "TopicArn": topic,
            "Subject": "Amazon S3 Notification",
            "Message": json.dumps({"Records": [event.record()]}),
            "Timestamp": "2025-04-02T00:00:00.000Z",
        }
    )


def _write_stretched(path: Path, dataset: str, key: str, content: bytes) -> None:
    pieces = STRETCH[dataset](key, content)
    with path.open("wb") as file:
        for offset, piece in pieces:
            file.seek(offset)
            file.write(piece)
    if dataset == "hrrr":
        path.with_name(f"{path.name}.idx").write_text(hrrr_index(_sample_index(key), pieces), encoding="ascii")


def _sample_index(key: str) -> str:
    match = _HRRR_KEY.match(key)
    if match is None:
        raise ValueError(key)
    day, region, hour, product, lead = match.groups()
    run = datetime.strptime(day + hour, "%Y%m%d%H").replace(tzinfo=UTC)
    return make_hrrr(run=run, lead=int(lead), product=product, region=region)[2]
