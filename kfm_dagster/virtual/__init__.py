"""Virtual Zarr stores: for each collection and day, the Items that stand as cubes of references to their objects.

`VirtualZarr` is a follower of the catalog (`catalog/changes.py`), `kfm_dagster.virtual.references` the format.
"""

from kfm_dagster.virtual.changing import VirtualReport
from kfm_dagster.virtual.follower import VirtualZarr

__all__ = ["VirtualReport", "VirtualZarr"]
