"""The demo: an embedded cloud, sample objects in their true formats, and a whole deployment that ingests them."""
