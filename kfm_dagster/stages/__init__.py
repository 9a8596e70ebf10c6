"""Stages: the run contract: hash an operator's inputs, skip or compute, commit once."""
