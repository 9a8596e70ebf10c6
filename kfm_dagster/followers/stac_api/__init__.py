"""The STAC API's database (pgstac): loading the catalog's Items, and verifying them."""
