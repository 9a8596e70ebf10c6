"""The STAC API's database (pgstac): loads the catalog's Items, and verifies that the API has exactly these."""
