"""Chaos: faults on purpose, in a real deployment, by a plan that can be repeated. Never in prod."""
