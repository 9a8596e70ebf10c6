"""Spans of units' attempts, measures and energy of a step, totals, the clock's error."""
