"""Announcements: who subscribes to the catalog's Items hears of each that was created, updated or withdrawn.

`plan.py` reads `configs/announcements.yaml`, `event.py` and `wis2.py` say what an event looks like, `announcer.py`
follows the catalog for one subscription, `aws.py` and `webhook.py` send.
"""
