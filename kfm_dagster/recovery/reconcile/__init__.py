"""Reconciliation: compare bucket, ledger, catalog and lineage, and repair differences."""
