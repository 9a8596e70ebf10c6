"""Artifacts: immutable, content-addressed blobs under the storage URL.

The path of an artifact is `<folder>/<aa>/<sha256>.<suffix>`. A blob is written before the commit of the
transaction that names it, so a crash may leave a blob without a record, which does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from obstore.exceptions import AlreadyExistsError, NotFoundError

from kfm_dagster.errors import ArtifactError
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.storage.answering import answering

_answering = partial(answering, "the store of artifacts", "KFM_STORAGE_URL")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactReference:
    """Path of a blob (relative to the storage URL) and the digest of its content."""

    uri: str
    sha256: str


class Artifacts:
    """Reads and writes artifacts in an obstore store (folder or bucket), opened at first use.

    Opened late, because opening creates a missing folder, and a command that reads no artifact must create nothing.
    """

    def __init__(self, open_store: Callable[[], Any], *, folder: str = "artifacts") -> None:
        self._open_store = open_store
        self._folder = folder

    @cached_property
    def _store(self) -> Any:
        return self._open_store()

    def put(self, content: bytes, *, suffix: str) -> ArtifactReference:
        """Store the bytes once; the same bytes give the same reference and no second write.

        Raises StoreAccessError and DependencyUnavailableError, as `get` does.
        """
        digest = hashlib.sha256(content).hexdigest()
        path = f"{self._folder}/{digest[:2]}/{digest}.{suffix}"
        hit(Failpoint.ARTIFACT_PUT_BEFORE)
        with contextlib.suppress(AlreadyExistsError), _answering():
            self._store.put(path, content, mode="create")
        hit(Failpoint.ARTIFACT_PUT_AFTER)
        return ArtifactReference(uri=path, sha256=digest)

    def get(self, reference: ArtifactReference) -> bytes:
        """Return the bytes. Raises ArtifactError if the blob is missing or has changed."""
        try:
            with _answering():
                content = bytes(self._store.get(reference.uri).bytes())
        except (FileNotFoundError, NotFoundError):
            raise ArtifactError(
                observed=f"{reference.uri} is gone",
                next_step="run the node again in a new run; kfm retention plan shows how long outputs are kept",
            ) from None
        digest = hashlib.sha256(content).hexdigest()
        if digest != reference.sha256:
            raise ArtifactError(
                observed=f"{reference.uri} has sha256 {digest}",
                expected=reference.sha256,
                next_step="run the node again",
            )
        return content

    def has(self, reference: ArtifactReference) -> bool:
        """Return whether the blob exists, by a HEAD request. Raises as `put` does."""
        try:
            with _answering():
                self._store.get(reference.uri, options={"head": True})
        except (FileNotFoundError, NotFoundError):
            return False
        return True
