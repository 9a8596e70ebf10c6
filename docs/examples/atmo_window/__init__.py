"""A node of another domain: hourly windows over surface observations, as an idempotent node (docs/idempotent-node.md).

The node imports `kfm_dagster.idempotent_node`, `run_state`, `governance` (masking and its log) and `storage`, but no
part of the ingest pipeline; only `definitions.py` imports dagster.
"""
