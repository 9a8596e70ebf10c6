"""The resident worker: continuous ingest in a process, beside the sensors' runs."""
