"""Old bodies of rejected messages, in the database: what hostile senders make it keep.

What was rejected, when and why stays; the database refuses to remove what a queue may give again. Does not belong here:
files of the store (`stored_files.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from kfm_dagster.retention.pruning import OldBatch
from kfm_dagster.storage.database import Database

BATCH = 1_000
"""Bodies of one transaction; SQS lets each have 1 MiB."""


@dataclass(frozen=True, kw_only=True)
class RejectedBodies:
    """Bodies of messages of which a record was rejected."""

    database: Database

    def batches(self, before: datetime) -> Iterator[OldBatch]:
        """Yield the bodies that came before that moment. Raises DatabaseUnavailableError."""
        after = ""
        while True:
            with self.database.snapshot() as tx:
                asked = {"before": before, "after": after, "limit": BATCH}
                rows = tx.run("retention.rejected_bodies", asked).all()
            if not rows:
                return
            after = rows[-1].message_id
            ids = [row.message_id for row in rows]
            yield OldBatch(old=len(ids), removable=ids, bytes=sum(row.characters for row in rows))

    def remove(self, batch: OldBatch) -> None:
        """Delete them. Raises DatabaseUnavailableError."""
        with self.database.transaction() as tx:
            tx.run("retention.remove_rejected_bodies", message_ids=batch.removable)
