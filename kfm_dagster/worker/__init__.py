"""The resident worker: continuous ingest in one process, beside the sensors' runs."""
