"""The embedded cloud of the tests: one server per worker, emptied for each module or test."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable
from typing import Any

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import TIMEOUT_SECONDS, EmbeddedCloud
from kfm_dagster.demo.feed import Feed, FeedObject, ObjectEvent


def emptied(cloud: EmbeddedCloud) -> EmbeddedCloud:
    """Return the cloud without buckets, topics, queues and messages, at the same endpoint."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{cloud.endpoint_url}/moto-api/reset", data=b"", timeout=TIMEOUT_SECONDS):
        return cloud


def feed(
    server: EmbeddedCloud,
    contracts: ContractRegistry,
    samples: Iterable[tuple[str, str, bytes]],
    *,
    duplicates: int = 0,
    **queue: Any,
) -> list[ObjectEvent]:
    """Empty the cloud and announce samples (bucket, key, content), the first `duplicates` of them twice."""
    cloud = emptied(server)
    cloud.provision(contracts, **queue)
    source = Feed(cloud, contracts)
    events = [source.deliver(FeedObject(bucket=bucket, key=key, content=content)) for bucket, key, content in samples]
    source.announce([*events, *events[:duplicates]])
    return events


def catalog_items(cloud: EmbeddedCloud, bucket: str) -> list[dict[str, Any]]:
    """Return the Items of the catalog in a bucket."""
    s3 = cloud.client("s3")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", []) if entry["Key"].endswith(".json")]
    documents = [json.load(s3.get_object(Bucket=bucket, Key=key)["Body"]) for key in keys]
    return [document for document in documents if document.get("type") == "Feature"]
