"""Spans of the run contract; what is measured of a step, and its energy."""
