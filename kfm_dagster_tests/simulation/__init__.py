"""A deterministic simulation of a whole deployment: real code in a world generated from a seed."""
