"""What the process that runs are forked from does last, by being imported: keep the collector from what it has loaded.

A forked run has its parent's memory until one of them writes, and the collector writes into whatever it looks at. Not
for a process that ends by itself: what is frozen is not torn down, of which libraries complain.
Importing it has an effect, so it is only ever named (`code_server.py`).
"""

import gc

from kfm_dagster.cyclic_gc import collect_rarely

gc.collect()
gc.freeze()
collect_rarely()
