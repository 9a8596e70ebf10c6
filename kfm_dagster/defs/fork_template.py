"""The last import of the process that forks runs: freezes its objects against garbage collection.

A forked run shares its parent's memory until either writes, and the collector writes into the objects that it
examines. Do not import it in other processes, because frozen objects are not torn down, and libraries complain.
`code_server.py` has only the name of this module.
"""

import gc

from kfm_dagster.cyclic_gc import collect_rarely

gc.collect()
gc.freeze()
collect_rarely()
