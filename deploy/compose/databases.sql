-- The database of the STAC API, made with the server's first start; kfm init puts pgstac into it.
CREATE DATABASE stac;
