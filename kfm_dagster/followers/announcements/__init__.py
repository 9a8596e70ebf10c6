"""Announcements: events to subscribers for each change of an Item in the catalog.

`plan.py` reads `configs/announcements.yaml`, `event.py` and `wis2.py` write events, `announcer.py` follows the catalog
for a subscription, `aws.py` and `webhook.py` send the events.
"""
