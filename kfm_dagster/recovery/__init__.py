"""Recovery: ingest units again after a failure, by an attributed decision and by the ledger."""
