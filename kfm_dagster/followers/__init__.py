"""Followers of the catalog: products made from its changes, each in its own folder."""
