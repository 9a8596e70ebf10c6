"""Fuzzing: mutated objects, read by every reader, each held to what a reader promises of any bytes."""
