"""Explanations: what a run did and why, how long its nodes took, and what it found in a unit. They only read."""
