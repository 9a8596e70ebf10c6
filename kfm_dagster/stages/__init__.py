"""Stages: the run contract hashes a node's inputs, then skips, or computes and commits once."""
