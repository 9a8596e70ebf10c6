"""Documents that people write: contracts, the pipeline card, selections and plans, read and held against a model."""
