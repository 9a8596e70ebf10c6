"""Fuzzing: every reader reads mutated objects within its bounds, or refuses them."""
