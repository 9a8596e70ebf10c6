"""Readers: metadata from object headers by range requests. Pure: bytes in, `HeaderMetadata` or `ReadError` out."""
