"""Virtual stores as an Icechunk repository, which checks the ETags of the indexed objects.

Belongs here: writing a repository. Does not belong here: reading a repository, which Icechunk's own readers do.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import orjson

from kfm_dagster.followers.virtual.references import chunks_of, metadata_of, values_of
from kfm_dagster.followers.virtual.zarr3 import chunk_key, to_version_3
from kfm_dagster.reading.packages import package
from kfm_dagster.reading.stores import StoreSource, documents_of, joined


def write_icechunk(source: StoreSource, target: str) -> int:
    """Write stores as one array to a repository, and return the number of the array's steps.

    `target` is a folder or s3://bucket/prefix. A missing repository is created; in an existing one, the array replaces
    the content of branch `main`. Raises DependencyUnavailableError without the extra, and as `open` does for stores.
    """
    icechunk = package("icechunk", extra="icechunk")
    cube, region = joined(documents_of(source))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    place = {
        "region": region,
        "endpoint_url": endpoint,
        "allow_http": str(endpoint).startswith("http:"),
        "force_path_style": bool(endpoint),
    }
    config = icechunk.RepositoryConfig.default()
    for bucket in {step.uri.split("/")[2] for step in cube.steps}:
        store = icechunk.s3_store(**place, anonymous=True)
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"s3://{bucket}/", store))
    bucket, _, prefix = target.removeprefix("s3://").rstrip("/").partition("/")
    storage = (
        icechunk.s3_storage(**place, bucket=bucket, prefix=prefix, from_env=True)
        if target.startswith("s3://")
        else icechunk.local_filesystem_storage(target)
    )
    repository = icechunk.Repository.open_or_create(storage, config)
    repository.save_config()
    session = repository.writable_session("main")
    metadata = metadata_of(cube)
    files = {key: orjson.dumps(document) for key, document in to_version_3(metadata).items()}
    for name, data in values_of(cube):
        files[chunk_key(name, [0] * len(metadata[f"{name}/.zarray"]["shape"]), version=3)] = data
    asyncio.run(_replace(session.store, files))
    references = defaultdict(list)
    for name, number, step, chunk in chunks_of(cube):
        reference = icechunk.VirtualChunkSpec(list(number), step.uri, chunk.offset, chunk.length, f'"{step.etag}"')
        references[name].append(reference)
    for name, chunks in references.items():
        session.store.set_virtual_refs(name, chunks)
    session.commit(f"{len(cube.steps)} steps from {cube.steps[0].datetime} to {cube.steps[-1].datetime}")
    return len(cube.steps)


async def _replace(store: Any, files: Mapping[str, bytes]) -> None:
    buffer = package("zarr.core.buffer").default_buffer_prototype().buffer
    await store.clear()
    for key, content in files.items():
        await store.set(key, buffer.from_bytes(content))
