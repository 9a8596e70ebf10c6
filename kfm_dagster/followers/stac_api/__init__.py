"""The STAC API's database (pgstac): the catalog's Items in it, and the proof that they are the same."""
