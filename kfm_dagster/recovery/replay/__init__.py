"""Replays: units that are let in again by a person's decision, always through the ledger."""
