"""Dataset contracts and the values that travel between operators."""
