"""The embedded cloud of the tests: one server for each worker of the suite, emptied for each module or test."""

from __future__ import annotations

import urllib.request

from kfm_dagster.demo.cloud import TIMEOUT_SECONDS, EmbeddedCloud


def emptied(cloud: EmbeddedCloud) -> EmbeddedCloud:
    """Return the cloud without buckets, topics, queues and messages; its endpoint and its certificate stay."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{cloud.endpoint_url}/moto-api/reset", data=b"", timeout=TIMEOUT_SECONDS):
        return cloud
