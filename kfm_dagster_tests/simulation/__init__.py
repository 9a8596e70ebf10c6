"""A deterministic simulation of a deployment: the product's code in a world that a seed determines."""
