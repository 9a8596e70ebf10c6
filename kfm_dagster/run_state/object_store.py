"""Run-state as objects, in a folder or on S3.

The path of a record is `{base}/{branch}/_run_state/{dataset_id}/{run_id}.json`. With lakeFS the base is
`s3://<repository>` at its S3 gateway, so that a record is versioned together with the data of its branch:
`lakefs://<repository>/<branch>/_run_state/...`. A record is written after the commit of its transaction. Belongs here:
that layout. Not for an environment with many runs, because queries over long histories read every object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import quote

from obstore.exceptions import AlreadyExistsError, NotFoundError

from kfm_dagster.run_state.record import Outcome, RunState, RunStateError, count_write
from kfm_dagster.run_state.store import by_outcome, is_kept
from kfm_dagster.storage.answering import answering
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.s3 import Store

_answering = partial(answering, "the run-state store", "KFM_RUN_STATE")

FOLDER = "_run_state"
READERS = 16
"""Records read concurrently: S3 answers in some 20 ms, and 10,000 in sequence would take minutes."""


class ObjectRunState:
    """Run-state of a branch in an obstore store."""

    def __init__(self, store: Store, *, branch: str) -> None:
        self._store = store
        self._branch = branch
        self._root = f"{branch}/{FOLDER}"

    def get(self, dataset_id: str, run_id: str) -> RunState | None:
        """Return the record, or None. Raises RunStateError for an invalid object."""
        return self._read(self._path(dataset_id, run_id))

    def of_run(self, run_id: str) -> Sequence[RunState]:
        """Return the records of a run's nodes, in the order of writing."""
        with _answering():
            nodes = self._store.list_with_delimiter(self._root)["common_prefixes"]
        records = self._read_all(self._path(node.rstrip("/").rpartition("/")[2], run_id) for node in nodes)
        return sorted(records, key=lambda state: (state.recorded_at, state.dataset_id))

    def put(self, record: RunState, tx: Transaction) -> None:
        """Write the record after the caller's commit, unless the existing record must be kept.

        Raises RunStateError, before any write, for an invalid record or a record of another branch.
        """
        content = json.dumps(record.as_json(), sort_keys=True, indent=1, allow_nan=False).encode()
        if record.lakefs_branch != self._branch:
            raise RunStateError(observed=f"a record of branch {record.lakefs_branch}", expected=self._branch)
        tx.after_commit(lambda: self._write(record, content))

    def counts(self) -> Mapping[Outcome, int]:
        """Return the number of records by outcome, zeros included."""
        outcomes = [state.outcome for state in self._all()]
        return by_outcome({outcome: outcomes.count(outcome) for outcome in Outcome})

    def _path(self, dataset_id: str, run_id: str) -> str:
        return f"{self._root}/{dataset_id}/{quote(run_id, safe='')}.json"

    def _write(self, record: RunState, content: bytes) -> None:
        path = self._path(record.dataset_id, record.run_id)
        with _answering():
            try:
                # Created only if missing, so that the second of two concurrent writers detects the first.
                self._store.put(path, content, mode="create")
            except AlreadyExistsError:
                if is_kept(self._read(path), record):
                    return
                self._store.put(path, content)
        count_write(record.outcome)

    def _read(self, path: str) -> RunState | None:
        with _answering():
            try:
                content = bytes(self._store.get(path).bytes())
            except (FileNotFoundError, NotFoundError):
                return None
        try:
            return RunState.from_json(json.loads(content))
        except (ValueError, TypeError, RunStateError) as error:
            raise RunStateError(
                "an object is not a run-state record",
                observed=f"{path}: {error}",
                next_step="delete the object; its node then runs again",
            ) from None

    def _all(self) -> Iterator[RunState]:
        with _answering():
            paths = [meta["path"] for page in self._store.list(self._root) for meta in page]
        return self._read_all(path for path in paths if path.endswith(".json"))

    def _read_all(self, paths: Iterable[str]) -> Iterator[RunState]:
        with ThreadPoolExecutor(READERS) as readers:
            yield from filter(None, readers.map(self._read, paths))
