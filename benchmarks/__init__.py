"""Measurements that are too long for the tests; each prints its figures."""
