"""The run contract around the operators: hash, skip, compute, commit."""
