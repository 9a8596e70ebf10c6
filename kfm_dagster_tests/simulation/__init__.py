"""A deterministic simulation of a whole deployment: real code in a world that a seed makes."""
