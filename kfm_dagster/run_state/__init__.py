"""Run-state: the record that tells whether a node already did its work in a run."""
