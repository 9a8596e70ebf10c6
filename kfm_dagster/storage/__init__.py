"""Database engine and migrations; object stores."""

import os

# The client of S3 (`s3.py`) allocates by mimalloc, which keeps the 3 MB that a request took for each thread that ever
# made one, unless it is set to give back at once: 400 MB of a run that reads by 128 threads. It looks for that as it
# is loaded, hence here, before anything of the room is imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
