"""Virtual Zarr stores: each day's Items of a collection as cubes of references to objects.

`VirtualZarr` is a follower of the catalog (`catalog/changes.py`), `references.py` the format.
"""

from kfm_dagster.followers.virtual.follower import VirtualZarr

__all__ = ["VirtualZarr"]
