"""The outbox: entries that are delivered later, at least once, by any number of processes."""

from kfm_dagster.outbox.store import Entry, Outbox

__all__ = ["Entry", "Outbox"]
