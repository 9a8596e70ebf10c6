"""STAC: build, validate, stage, promote."""
