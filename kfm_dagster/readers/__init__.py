"""Readers: metadata from object headers by range requests.

Pure: bytes in, `HeaderMetadata` or `ReadError` out. Your own reader implements the protocol `Reader`; `base.py` has
the readers of this package by name.
"""

from kfm_dagster.readers.base import ByteSource, HeaderMetadata, Reader, ReadError, ReadRequest

__all__ = [
    "ByteSource",
    "HeaderMetadata",
    "ReadError",
    "ReadRequest",
    "Reader",
]
