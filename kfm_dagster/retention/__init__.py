"""Retention: bulky things that nothing needs any more go by policy; what says what happened stays (BEY-10).

`policy.py` reads `configs/retention.yaml`, `stored_files.py` finds old files in the store, `defs/old_runs.py` old runs
of Dagster, `pruning.py` plans and removes. No row of the ledger's database is ever deleted here.
"""
