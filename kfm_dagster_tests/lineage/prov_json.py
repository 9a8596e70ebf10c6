"""PROV-JSON of a PROV document, converted by the package prov."""

from __future__ import annotations

import json
import warnings
from typing import Any


def prov_json(document: bytes) -> dict[str, Any]:
    """Convert a JSON-LD document to PROV-JSON, and check that the PROV-JSON can be read again."""
    import prov.model

    with warnings.catch_warnings():
        # rdflib 7.6 uses its own deprecated classes to read JSON-LD, also through prov 3.2.
        warnings.simplefilter("ignore", DeprecationWarning)
        read = prov.model.ProvDocument.deserialize(content=document.decode(), format="rdf", rdf_format="json-ld")
    text = read.serialize(format="json")
    assert prov.model.ProvDocument.deserialize(content=text, format="json").get_records()
    converted: dict[str, Any] = json.loads(text)
    return converted
