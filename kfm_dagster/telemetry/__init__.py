"""Spans of the run contract; measures of a step, and its energy; the clock's error."""
