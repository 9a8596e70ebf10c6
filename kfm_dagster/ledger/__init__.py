"""The NODD WAL: what became of every object."""
