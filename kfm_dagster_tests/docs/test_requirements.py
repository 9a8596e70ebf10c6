"""Every requirement of the documents has a clause that a test claims, and a page on which its own names are found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfm_dagster_tests.clause_plugin import REQUIREMENTS, SPEC

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"document", "section", "must", "clauses", "test", "page", "names", "instead"}
FEWEST = {"000": 60, "001": 60, "002": 60, "003": 95, "004": 65, "card": 17}
"""Rows by document: as many as a reading of each found, its repeats left out."""


def name(row: dict[str, Any]) -> str:
    return f"{row['document']} {row['section']}: {row['must']}"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The requirements of the documents."""
    return yaml.safe_load(REQUIREMENTS.read_text(encoding="utf-8"))["requirements"]


@pytest.fixture(scope="module")
def claimed() -> set[str]:
    """Every clause that a test claims."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "kfm_dagster_tests").rglob("test_*.py")]
    marks = [mark for text in texts for mark in re.findall(r"mark\.clause\(([^)]*)\)", text)]
    return {clause for mark in marks for clause in re.findall(r"[A-Z]{3}-\d{2}", mark)}


def test_each_row_is_whole_and_there_once(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert {"document", "section", "must", "page"} <= set(row) <= KEYS, name(row)
    assert len({name(row) for row in rows}) == len(rows)
    for document, fewest in FEWEST.items():
        assert sum(row["document"] == document for row in rows) >= fewest, document
    assert {row["document"] for row in rows} == set(FEWEST)


def test_no_requirement_is_silent(rows: list[dict[str, Any]], claimed: set[str]) -> None:
    known = {clause["id"] for clause in yaml.safe_load(SPEC.read_text(encoding="utf-8"))["clauses"]}
    for row in rows:
        clauses = set(row.get("clauses", []))
        assert clauses <= known, name(row)
        assert clauses & claimed or "test" in row or "instead" in row, name(row)
        assert "test" not in row or (ROOT / row["test"]).is_file(), name(row)


def test_somebody_who_knows_only_a_document_finds_its_names_on_the_page_of_each_requirement(
    rows: list[dict[str, Any]],
) -> None:
    lost = []
    for row in rows:
        page = (ROOT / row["page"]).read_text(encoding="utf-8")
        lost += [f"{row['page']} has no {one!r} ({name(row)})" for one in row.get("names", []) if one not in page]
        assert "instead" not in row or (ROOT / row["instead"]).is_file(), name(row)
    assert not lost, "\n".join(lost)
