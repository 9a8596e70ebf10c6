"""Run-state around plain Python: `lengths.py`."""
