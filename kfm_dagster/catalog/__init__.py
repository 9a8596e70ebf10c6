"""The STAC catalog: build, validate, stage and promote Items, and follow their changes."""
