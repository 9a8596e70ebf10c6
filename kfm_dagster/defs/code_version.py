"""The code's fingerprint and SQL statements, fixed as of now in this process and its forks.

Imported for this effect alone, by the process that `code_server.py` forks runs from. A run executes the code that was
imported when the server started; fingerprint and statements that are read only in the run would be those of an update
since. Nothing else imports this, and no definition belongs here.
"""

from __future__ import annotations

from contextlib import suppress

from kfm_dagster.errors import KfmError
from kfm_dagster.ingest.pipeline import installed_code
from kfm_dagster.settings import Settings
from kfm_dagster.storage.statements import read_all_sql

# An error here is dropped: the run raises it again and reports it. Here it would only end the process that forks.
with suppress(KfmError, OSError):
    installed_code(Settings.load())
with suppress(KfmError, OSError):
    read_all_sql()
