"""Recovery: units are ingested again after a failure, by a person's decision or by the ledger."""
