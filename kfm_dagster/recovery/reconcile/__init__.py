"""Reconciliation: bucket, ledger and catalog held against each other, and what differs repaired on ordinary ways."""
