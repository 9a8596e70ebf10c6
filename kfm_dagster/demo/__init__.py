"""The demo: an embedded cloud, sample objects in their true formats, and their way through a whole deployment."""
