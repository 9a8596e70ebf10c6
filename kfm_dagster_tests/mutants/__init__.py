"""Mutants: remove one rule of the product at a time, and run the test that must fail."""
