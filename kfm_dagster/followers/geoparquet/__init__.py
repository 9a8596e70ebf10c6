"""GeoParquet: the Items of each day as tables beside the static catalog, for questions that no tree of files answers.

    <collection>/items/<YYYY>/<YYYY-MM-DD>-<change>-<digest>.parquet     rows, by stac-geoparquet 1.0.0
    <collection>/items/<YYYY>/<YYYY-MM-DD>-<change>-<digest>.json        which of them are the day's

A day is one file, or a large one and few small ones that wait to be merged into it (`parts.py`). No file is ever
changed: what is new is written beside what stands, and the description of the day makes it stand (`days.py`). pyarrow
takes 0.2 s to import, so only who follows or searches imports these modules.
"""
