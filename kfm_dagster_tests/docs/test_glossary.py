"""The glossary names places that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| word ")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_word_says_where_it_is_at_home(row: list[str]) -> None:
    _word, meaning, where = row
    places = re.findall(r"`([\w/.]+)`", where)
    assert places
    for place in places:
        assert (ROOT / "kfm_dagster" / place).exists() or (ROOT / place).exists(), place
    assert len(meaning) > 20
