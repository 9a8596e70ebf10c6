"""Readers: metadata from object headers by range requests. Pure: bytes in, `HeaderMetadata` or `ReadError` out.

A reader of your own fills the protocol `Reader`. The formats that are here are found by name in `registry.py`.
"""

from kfm_dagster.readers.base import ByteSource, DeclaringReader, HeaderMetadata, Reader, ReadError, ReadRequest

__all__ = [
    "ByteSource",
    "DeclaringReader",
    "HeaderMetadata",
    "ReadError",
    "ReadRequest",
    "Reader",
]
