"""The pipeline without Dagster: intake of messages, planning of runs, and the six nodes of a run."""
