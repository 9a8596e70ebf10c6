"""Alerts over the stages: found in what is recorded, kept, told once, acknowledged by people.

`plan.py` reads `configs/alerts.yaml`, `book.py` keeps the alerts, `channels.py` delivers, `desk.py` is one evaluation.
"""
