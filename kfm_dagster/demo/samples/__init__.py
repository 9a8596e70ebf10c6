"""Small objects in their true formats, made for the demo and the tests."""
