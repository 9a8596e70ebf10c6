"""Mutants: one rule of the product taken away at a time, and the test that must notice it."""
