"""The resident worker: continuous ingest in one process, beside the runs that sensors request."""
