"""Virtual Zarr stores: the current Items of each collection and day as cubes of references to their objects.

`VirtualZarr` is a follower of the catalog (`catalog/changes.py`), `references.py` the format.
"""

from kfm_dagster.followers.virtual.follower import VirtualZarr

__all__ = ["VirtualZarr"]
