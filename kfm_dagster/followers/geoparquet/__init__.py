"""GeoParquet: the Items of each day as tables beside the static catalog, for questions that no tree of files answers.

    <collection>/items/<YYYY>/<YYYY-MM-DD>-<change>-<digest>.parquet     rows, by stac-geoparquet 1.0.0
    <collection>/items/<YYYY>/<YYYY-MM-DD>-<change>-<digest>.json        which of them are the day's

A day is one file, or a large one and few small ones that wait to be merged into it (`parts.py`). No file is ever
changed: what is new is written beside what stands, and the description of the day makes it stand (`days.py`). pyarrow
takes 0.2 s to import, so only who follows or searches imports these modules.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from kfm_dagster.catalog.changes import Follower
from kfm_dagster.catalog.discovery import FollowerContext, FollowerSource


class GeoParquetSource(FollowerSource):
    """Follows unless KFM_GEOPARQUET is false."""

    @override
    def followers(self, context: FollowerContext) -> Sequence[Follower]:
        if not self.settings.geoparquet:
            return ()
        from kfm_dagster.followers.geoparquet.follower import GeoParquet  # noqa: PLC0415, pyarrow and shapely

        return [GeoParquet(context.catalog)]
