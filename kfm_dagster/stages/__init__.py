"""Stages: the run contract around the operators - hash the inputs, skip or compute, commit once."""
