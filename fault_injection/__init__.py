"""Chaos: faults on purpose, in a real deployment, by a repeatable plan; refused in prod."""
