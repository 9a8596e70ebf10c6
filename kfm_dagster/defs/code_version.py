"""Read the code's fingerprint and SQL statements now, for this process and its forks.

Imported only for this effect, by the process from which `code_server.py` forks runs. A run executes the code that the
server imported at its start. If the run read fingerprint and statements itself, they could be those of a later update.
No definition belongs here.
"""

from __future__ import annotations

from contextlib import suppress

from kfm_dagster.errors import KfmError
from kfm_dagster.ingest.pipeline import installed_code
from kfm_dagster.settings import Settings
from kfm_dagster.storage.statements import read_all_sql

# An error is dropped, because here it would only end the process that forks; the run raises it again and reports it.
with suppress(KfmError, OSError):
    installed_code(Settings.load())
with suppress(KfmError, OSError):
    read_all_sql()
