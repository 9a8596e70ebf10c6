"""Database engine and migrations; object stores."""

import os

# The S3 client (`s3.py`) allocates with mimalloc, which keeps 3 MB for each thread that made requests (400 MB in a run
# with 128 reading threads). This variable makes mimalloc return freed memory at once. mimalloc reads it when it is
# loaded, so it is set here, before any import of this folder.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
