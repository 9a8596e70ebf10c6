"""Lineage of every unit as OpenLineage and as PROV-O, each recorded once."""
