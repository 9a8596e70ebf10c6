"""The pipeline without Dagster: take messages in, plan runs, and the six nodes that a run works through."""
