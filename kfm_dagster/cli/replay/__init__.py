"""`kfm replay`, also `nodd-replay`."""
