"""`kfm export`."""
