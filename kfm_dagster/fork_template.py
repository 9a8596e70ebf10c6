"""The last import of the process that forks runs: definitions assembled, objects frozen against garbage collection.

A forked run begins with what its parent has loaded, and assembles definitions again only if their inputs have changed.
It shares its parent's memory until either writes, and the collector writes into the objects that it examines. Do not
import it in other processes, because frozen objects are not torn down, and libraries complain. `code_server.py` has
only the name of this module.
"""

import gc
from contextlib import suppress

from kfm_dagster.catalog.validation import validate_document
from kfm_dagster.cyclic_gc import collect_rarely
from kfm_dagster.definitions import defs
from kfm_dagster.readers.base import READERS

# Any error is dropped, because here it would end the process that forks, and with it every run. A run raises it again.
with suppress(Exception):
    defs().get_repository_def()
# Each run would import its readers again.
modules = [reader.module for reader in READERS.values()]
# Compiles the schemas.
validate_document({"type": "Feature"})

gc.collect()
gc.freeze()
collect_rarely()
