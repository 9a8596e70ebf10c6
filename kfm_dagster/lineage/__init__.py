"""OpenLineage and PROV-O for every unit, once."""
