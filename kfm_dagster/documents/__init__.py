"""Documents (contracts, the pipeline card, selections, plans), validated by a model."""
