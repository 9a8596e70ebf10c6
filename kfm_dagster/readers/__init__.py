"""Readers: metadata from object headers by range requests.

Pure: bytes in, `HeaderMetadata` or `ReadError` out. Your own reader implements the protocol `Reader` of `base.py`,
which has the readers of this package by name.
"""
