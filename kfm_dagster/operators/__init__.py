"""The five operators: pure functions over an envelope."""
