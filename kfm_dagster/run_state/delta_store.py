"""Run-state as a Delta Lake table `{base}/{branch}/_run_state`, keyed (dataset_id, run_id).

Delta enforces no keys, so each write is a MERGE on the key. The table's log accepts only the first of two concurrent
writers, and the second merges again. Each call opens the table, because a revert of the branch may set the log
back, which an open table would not notice. Belongs here: this store, which needs the extra `delta`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError
from kfm_dagster.redaction import error_text
from kfm_dagster.run_state.record import ROLLED_BACK_BY, Outcome, RunState, RunStateError, count_write
from kfm_dagster.run_state.store import by_outcome
from kfm_dagster.storage.answering import refusal, unavailable
from kfm_dagster.storage.database import Transaction

if TYPE_CHECKING:
    from deltalake import DeltaTable

FOLDER = "_run_state"
MERGE_ATTEMPTS = 20
"""Each failed attempt means that another writer succeeded, so twenty concurrent writers all succeed."""
COMPACT_EVERY = 100
"""Commits between two compactions. Each commit since the last one is a file; a lookup opens all that may match."""

SCHEMA = pa.schema(
    [
        pa.field("dataset_id", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("lakefs_branch", pa.string(), nullable=False),
        pa.field("inputs_hash", pa.string(), nullable=False),
        # JSON text, because the members differ from node to node.
        pa.field("validation_summary", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("artifact_uri", pa.string()),
        pa.field("artifact_sha256", pa.string()),
    ]
)

Filter = list[tuple[str, str, Any]]


class DeltaRunState:
    """Run-state of a branch in a Delta table, in a folder or on S3 (by the AWS_* variables)."""

    def __init__(self, base: str, *, branch: str) -> None:
        """Create the table if missing. Raises ConfigurationError without the package `deltalake`."""
        try:
            import deltalake  # noqa: PLC0415 - the extra `delta`
        except ImportError:
            raise ConfigurationError(
                "KFM_RUN_STATE names a Delta table, and deltalake is not installed",
                next_step="pip install 'kfm-dagster[delta]', or choose another run-state store",
            ) from None
        self._branch = branch
        self.location = f"{base}/{branch}/{FOLDER}"
        with _answering():
            deltalake.DeltaTable.create(self.location, SCHEMA, mode="ignore", name="run_state")

    def get(self, dataset_id: str, run_id: str) -> RunState | None:
        """Return the record, or None."""
        records = self._records([("dataset_id", "=", dataset_id), ("run_id", "=", run_id)])
        return records[0] if records else None

    def of_run(self, run_id: str) -> Sequence[RunState]:
        """Return the records of a run's nodes, in the order of writing."""
        records = self._records([("run_id", "=", run_id)])
        return sorted(records, key=lambda state: (state.recorded_at, state.dataset_id))

    def put(self, record: RunState, tx: Transaction) -> None:
        """Merge the record after the caller's commit, unless the existing record must be kept.

        `is_kept` (`store.py`) has the rule. Raises RunStateError, before any write, for an invalid record or a record
        of another branch.
        """
        row = record.as_json()
        if record.lakefs_branch != self._branch:
            raise RunStateError(observed=f"a record of branch {record.lakefs_branch}", expected=self._branch)
        row["validation_summary"] = json.dumps(row["validation_summary"], sort_keys=True, allow_nan=False)
        row["recorded_at"] = record.recorded_at.astimezone(UTC)
        tx.after_commit(lambda: self._write(record, pa.Table.from_pylist([row], schema=SCHEMA)))

    def counts(self) -> Mapping[Outcome, int]:
        """Return the number of records by outcome, zeros included."""
        with _answering():
            table = self._open().to_pyarrow_table(columns=["outcome"])
        counts = table["outcome"].value_counts().to_pylist()
        return by_outcome({Outcome(entry["values"]): entry["counts"] for entry in counts})

    def _open(self) -> DeltaTable:
        import deltalake  # noqa: PLC0415

        return deltalake.DeltaTable(self.location)

    def _records(self, filters: Filter) -> list[RunState]:
        with _answering():
            table = self._open().to_pyarrow_table(filters=filters)
        return [_record(row) for row in table.to_pylist()]

    def _write(self, record: RunState, row: pa.Table) -> None:
        with _answering():
            merged = self._merge(row, replacing=_replaceable(record))
        if merged["num_target_rows_inserted"] or merged["num_target_rows_updated"]:
            count_write(record.outcome)

    def _merge(self, row: pa.Table, *, replacing: str) -> dict[str, Any]:
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        for attempt in range(MERGE_ATTEMPTS):
            table = self._open()
            merge = (
                table.merge(
                    row,
                    "old.dataset_id = new.dataset_id AND old.run_id = new.run_id",
                    source_alias="new",
                    target_alias="old",
                )
                .when_matched_update_all(replacing)
                .when_not_matched_insert_all()
            )
            try:
                merged: dict[str, Any] = merge.execute()
            except CommitFailedError:
                if attempt + 1 == MERGE_ATTEMPTS:
                    raise
            else:
                _keep_small(table)
                return merged
        raise AssertionError("unreachable: the last attempt returns or raises")


def _replaceable(record: RunState) -> str:
    """Return the merge's condition for replacing the existing row: the opposite of `is_kept`."""
    if record.rolled_back_by is not None:
        return "true"
    same = "true" if record.outcome is Outcome.SKIPPED else "old.inputs_hash = new.inputs_hash"
    taken_back = f"old.validation_summary LIKE '%\"{ROLLED_BACK_BY}\":%'"
    return f"NOT ({taken_back}) AND NOT (old.outcome = 'success' AND {same})"


def _keep_small(table: DeltaTable) -> None:
    from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

    if table.version() % COMPACT_EVERY == 0:
        try:
            table.optimize.compact()
        except CommitFailedError:
            return  # another writer was first; the next compaction is due in a hundred commits


def _record(row: Mapping[str, Any]) -> RunState:
    values = {
        "validation_summary": json.loads(row["validation_summary"]),
        "outcome": Outcome(row["outcome"]),
    }
    return RunState(**{**row, **values})


@contextmanager
def _answering() -> Iterator[None]:
    """Raise DependencyUnavailableError if the table does not answer."""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        yield
    except (DeltaError, OSError) as error:
        if refusal(error) is not None:
            raise unavailable(error, what="the run-state table", setting="KFM_RUN_STATE") from error
        raise DependencyUnavailableError(
            "the run-state table does not answer",
            observed=error_text(error),
            next_step="check KFM_RUN_STATE",
        ) from error
