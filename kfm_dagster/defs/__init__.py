"""The Dagster face; the only importer of dagster."""
