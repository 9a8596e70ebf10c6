"""Repairs of units, as the console and the runbook say them."""

from __future__ import annotations

import re
from pathlib import Path

from kfm_dagster.contracts.issues import REPAIRS, Repair

RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "runbooks" / "validation-errors.md"
LINK = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)")


def test_the_runbook_says_of_each_code_what_the_console_says() -> None:
    table = re.search(r"\| error code \|.*?\n\n", RUNBOOK.read_text(encoding="utf-8"), re.DOTALL)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:] if line]
    written = {
        code: Repair(usually=LINK.sub("", usually), repair=repair)
        for codes, usually, repair in rows
        for code in re.findall(r"`(\w+)`", codes)
    }
    assert written == {str(code): repair for code, repair in REPAIRS.items()}
