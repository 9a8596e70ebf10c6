"""Run-state as objects: `{base}/{branch}/_run_state/{dataset_id}/{run_id}.json`, in a folder or on S3.

With lakeFS the base is `s3://<repository>` at its S3 gateway, so that a record is versioned together with the data of
its branch: `lakefs://<repository>/<branch>/_run_state/...`. A record is written after the commit of the transaction
that it tells of. Belongs here: that layout. Does not belong here: queries over long histories; every object is read for
them, so an environment with many runs is better off with another store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import quote

from obstore.exceptions import AlreadyExistsError, NotFoundError

from kfm_dagster.run_state.record import Outcome, RunState, RunStateError
from kfm_dagster.run_state.store import by_outcome, is_kept
from kfm_dagster.run_state.writes import count_write
from kfm_dagster.storage.answering import answering
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.s3 import Store

_answering = partial(answering, "the run-state store", "KFM_RUN_STATE")

FOLDER = "_run_state"
READERS = 16
"""Records read at the same time: S3 answers in some 20 ms, and one after the other 10,000 would take minutes."""


class ObjectRunState:
    """Run-state of one branch in an obstore store."""

    def __init__(self, store: Store, *, branch: str) -> None:
        self._store = store
        self._branch = branch
        self._root = f"{branch}/{FOLDER}"

    def get(self, dataset_id: str, run_id: str) -> RunState | None:
        """Return the record, or None. Raises RunStateError for an object that is no record."""
        return self._read(self._path(dataset_id, run_id))

    def of_run(self, run_id: str) -> Sequence[RunState]:
        """Return every node's record of a run, in the order they were written."""
        with _answering():
            nodes = self._store.list_with_delimiter(self._root)["common_prefixes"]
        found = self._read_all(self._path(node.rstrip("/").rpartition("/")[2], run_id) for node in nodes)
        return sorted(found, key=lambda state: (state.recorded_at, state.dataset_id))

    def put(self, record: RunState, tx: Transaction) -> None:
        """Write the record after the caller's transaction; what is kept (`is_kept`) stays as it is.

        Raises RunStateError on a wrong record or one of another branch, before anything is written.
        """
        content = json.dumps(record.as_json(), sort_keys=True, indent=1, allow_nan=False).encode()
        if record.lakefs_branch != self._branch:
            raise RunStateError(observed=f"a record of branch {record.lakefs_branch}", expected=self._branch)
        tx.after_commit(lambda: self._write(record, content))

    def counts(self) -> Mapping[Outcome, int]:
        """Return how many records stand with each outcome, zeros included."""
        states = [state.outcome for state in self._all()]
        return by_outcome({outcome: states.count(outcome) for outcome in Outcome})

    def _path(self, dataset_id: str, run_id: str) -> str:
        return f"{self._root}/{dataset_id}/{quote(run_id, safe='')}.json"

    def _write(self, record: RunState, content: bytes) -> None:
        path = self._path(record.dataset_id, record.run_id)
        with _answering():
            try:
                # Created where there is none, so that a skip and a success that race for the first place both know.
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
                "an object is no run-state record",
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
