"""Mending the samples that are spoilt on purpose, as their provider would: the whole object is written to its place.

Belongs here: the whole objects as files, and the commands that write them. Does not belong here: which are spoilt
(`sample_day.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from kfm_dagster.demo.cloud import ACCESS_KEY_ID, SECRET_ACCESS_KEY, EmbeddedCloud
from kfm_dagster.demo.feed import StoredAs
from kfm_dagster.demo.sample_day import sample_objects


def mending_commands(cloud: EmbeddedCloud, folder: Path) -> Iterator[str]:
    """Write each spoilt sample whole to `folder/<bucket>/<key>`, and yield the command that stores it in the cloud."""
    for item in sample_objects():
        if item.delivery is StoredAs.WHOLE:
            continue
        whole = folder / item.bucket / item.key
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(item.content)
        address = f"{cloud.endpoint_url}/{item.bucket}/{item.key}"
        yield f"curl -sS -u {ACCESS_KEY_ID}:{SECRET_ACCESS_KEY} -T {shlex.quote(str(whole))} {shlex.quote(address)}"
