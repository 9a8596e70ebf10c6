"""Reconciliation: bucket, ledger, catalog and lineage compared, and what differs repaired on ordinary ways."""
