"""Assemble the definitions and freeze all objects: the last import before runs are forked.

A forked run begins with the modules and objects of its parent, and assembles definitions again only if their inputs
have changed. Run and parent share a page of memory until one of them writes into the page. The garbage collector
writes into each object that it examines, but skips frozen objects. Other processes must not import this module, because
libraries complain when frozen objects are not torn down. `code_server.py` only names this module.
"""

import gc
from contextlib import suppress

from kfm_dagster.catalog.validation import validate_document
from kfm_dagster.cyclic_gc import collect_rarely
from kfm_dagster.definitions import defs
from kfm_dagster.readers.base import READERS

# An error here would end the process that forks all runs, so it is dropped. A run raises it again.
with suppress(Exception):
    defs().get_repository_def()
# Imported once here, because otherwise each run would import its readers.
modules = [reader.module for reader in READERS.values()]
# The call compiles the schemas.
validate_document({"type": "Feature"})

gc.collect()
gc.freeze()
collect_rarely()
