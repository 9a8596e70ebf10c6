"""Exports: explanations, status and metrics; DCAT, graph and release bundle as files."""
