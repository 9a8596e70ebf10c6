"""Alerts, evaluated from records, delivered to channels, acknowledged by people.

`plan.py` reads `configs/alerts.yaml`, `store.py` keeps the alerts, `evaluator.py` evaluates and delivers.
"""
