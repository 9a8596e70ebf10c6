"""Search a catalog and open its objects in Python, without Dagster and the database.

    import kfm_dagster as kfm

    kfm.search("hrrr", time="2026-11-25", bbox=(-102, 37, -94.6, 40))
    kfm.open("hrrr", field="TMP:2 m above ground")

docs/python.md shows each function. Does not belong here: how Items and GeoParquet are written (`catalog`, `followers`).
"""
