"""`kfm dlq`."""
