"""Which code this is and what its SQL says, settled as of now in this process and in all that it forks.

Imported by the process that `code_server.py` forks runs from, and for this effect alone. A run executes the code that
was imported when the server started; looked up only in the run, fingerprint and statements would be those of whatever
an update has put in the files' place since. Nothing else imports this, and no definition belongs here.
"""

from __future__ import annotations

from contextlib import suppress

from kfm_dagster.errors import KfmError
from kfm_dagster.ingest.pipeline import installed_code
from kfm_dagster.settings import Settings
from kfm_dagster.storage.statements import read_all_sql

# What fails here is not kept. The run meets it again and tells it; here it would only end the process that forks.
with suppress(KfmError, OSError):
    installed_code(Settings.load())
with suppress(KfmError, OSError):
    read_all_sql()
