"""Recovery: units that come in again after a failure, by a decision that somebody answers for, always by the ledger."""
