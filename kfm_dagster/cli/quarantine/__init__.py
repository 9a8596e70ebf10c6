"""`kfm quarantine`, `kfm release`, `kfm discard`: units that a person has to judge, their evidence, the decision."""
