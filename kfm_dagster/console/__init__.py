"""What a browser or a monitor asks over HTTP; it only looks. Not here: the counts (`exports/`), Dagster's own UI."""
