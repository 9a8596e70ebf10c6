"""The Dagster face: the only importers of dagster. Take it off and every operator still runs."""
