"""The last import of the process that forks runs: it hides its objects from the collector.

A forked run shares its parent's memory until either writes, and the collector writes into the objects that it
examines. Not for a process that ends by itself: frozen objects are not torn down, and libraries complain about it.
Importing this module has an effect, so that others only name it (`code_server.py`).
"""

import gc

from kfm_dagster.cyclic_gc import collect_rarely

gc.collect()
gc.freeze()
collect_rarely()
