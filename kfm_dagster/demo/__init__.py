"""The demo: an embedded cloud, sample objects, and a whole deployment that ingests them."""
