"""Recovery: ingest units again after a failure, by decision of a person or of the ledger."""
