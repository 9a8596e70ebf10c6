"""The five operators: pure functions over one envelope."""
