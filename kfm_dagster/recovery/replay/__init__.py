"""Replays: units that a person's decision requeues, always through the ledger."""
