"""Exports: what stands here, in the forms of the rest of the platform."""
