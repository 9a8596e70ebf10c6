"""Fuzzing: every reader reads mutated objects within the reader's bounds, or refuses these objects."""
