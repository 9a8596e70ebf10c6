"""Exports: what stands here, explained, and in the forms of the rest of the platform."""
