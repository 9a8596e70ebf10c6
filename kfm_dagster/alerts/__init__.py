"""Alerts over the stages: found in what is recorded, kept, told once, acknowledged by people.

`plan.py` reads `configs/alerts.yaml`, `store.py` keeps the alerts, `channels.py` delivers, `evaluator.py` is one
evaluation.
"""
