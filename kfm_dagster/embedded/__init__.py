"""The embedded cloud and a whole deployment on one machine, for the demo, the benchmark and the tests."""
