"""Readers: metadata from object headers by range requests. Pure: bytes in, `HeaderMetadata` or `ReadError` out.

A reader of your own fills the protocol `Reader`. The formats that are here are found by name in `registry.py`.
"""

from kfm_dagster.readers.base import ByteSource, HeaderMetadata, Reader, ReadError, ReadRequest

__all__ = [
    "ByteSource",
    "HeaderMetadata",
    "ReadError",
    "ReadRequest",
    "Reader",
]
