"""The pipeline without Dagster: intake, planning of runs, and the six nodes of a run."""
