"""GeoParquet: the Items of each day as tables beside the static catalog, for queries.

    <collection>/items/<YYYY>/<YYYY-MM-DD>-<change>-<digest>.parquet     rows, by stac-geoparquet 1.0.0
    <collection>/items/<YYYY>/<YYYY-MM-DD>-<change>-<digest>.json        the day's description: the list of its parts

A day is one file, or a large file and a few small files that a later change merges into the large one (`parts.py`).
Files never change: new files are written beside the current files, and the day's description makes the new files
current (`days.py`). Only followers and searches import these modules, because pyarrow takes 0.2 s to import.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from kfm_dagster.catalog.changes import Follower
from kfm_dagster.catalog.follower_sources import FollowerContext, FollowerSource


class GeoParquetSource(FollowerSource):
    """Creates the follower unless KFM_GEOPARQUET is false."""

    @override
    def followers(self, context: FollowerContext) -> Sequence[Follower]:
        if not self.settings.geoparquet:
            return ()
        from kfm_dagster.followers.geoparquet.follower import GeoParquet  # noqa: PLC0415, pyarrow and shapely

        return [GeoParquet(context.catalog)]
