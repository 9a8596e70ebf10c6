"""Followers of the catalog: products that are made of its changes, each in its own folder."""
