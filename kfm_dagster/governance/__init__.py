"""Governance: people's decisions about datasets and records, and the log of them."""
