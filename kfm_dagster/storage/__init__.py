"""Database engine and migrations; object stores."""

import os

# The S3 client (`s3.py`) allocates by mimalloc, which keeps a request's 3 MB for each thread that made requests, unless
# it is set to purge at once: 400 MB in a run that reads by 128 threads. mimalloc reads this variable when it is loaded,
# so it is set here, before any import of the room.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
