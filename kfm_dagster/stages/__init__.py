"""Stages: the run contract around operators - hash the inputs, skip or compute, commit once."""
