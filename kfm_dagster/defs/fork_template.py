"""What the process that runs are forked from does last, by being imported: keep the collector from what it has loaded.

A forked run has its parent's memory until one of them writes, and the collector writes into whatever it looks at.
Importing it has an effect, so it is only ever named (`code_server.py`).
"""

from kfm_dagster.cyclic_gc import collect_rarely

collect_rarely()
