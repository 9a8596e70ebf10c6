"""Retention: bulky data that nothing needs are deleted by policy; history stays (BEY-10).

`policy.py` reads `configs/retention.yaml`, `pruning.py` plans and removes, `defs/run_storage.py` finds Dagster's runs.
No row of the ledger's database is ever deleted here.
"""
