"""Fixtures of the followers' tests: those of the catalog."""

from kfm_dagster_tests.catalog.conftest import catalog, clock, following, open_catalog, root, write

__all__ = ["catalog", "clock", "following", "open_catalog", "root", "write"]
