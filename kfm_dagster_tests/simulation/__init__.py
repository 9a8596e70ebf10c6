"""A deterministic simulation of a deployment: real code in a world from a seed."""
