"""The Dagster definitions: the only importers of dagster. Every operator runs without them."""
