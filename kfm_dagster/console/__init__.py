"""What a browser, a monitor, a program or an assistant asks; it only looks. Not here: counts, Dagster's own UI."""
