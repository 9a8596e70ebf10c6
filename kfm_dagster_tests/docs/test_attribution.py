"""What follows a document under CC BY 4.0 says so where it is used: NOTICE, the card's files, the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.configs import own_folder
from kfm_dagster.stages.card import REPLAY_PLAN, STATE_MACHINE

ROOT = Path(__file__).resolve().parents[2]
SUGGESTED = 'Author: "Guanglin Tu"; Work: "Energy Filament Theory"; Source: energyfilament.org; License: CC BY 4.0.'
"""As the pipeline card asks for it, at its end."""
LICENSE = "https://creativecommons.org/licenses/by/4.0/"


@pytest.mark.clause("PCS-23")
def test_the_attributions_stand_where_the_documents_are_used() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert SUGGESTED in notice
    assert 'Work: "KFM v11.2.2 - Run-State Pattern"; License: CC BY 4.0.' in notice
    assert LICENSE in notice
    for file in (STATE_MACHINE, REPLAY_PLAN, f"strict/{STATE_MACHINE}"):
        assert "(CC BY 4.0: NOTICE)" in (own_folder() / file).read_text(encoding="utf-8").splitlines()[0]
    for page, words in (
        ("pipeline-card", '"Energy Filament Theory" by Guanglin Tu'),
        ("run-state", "Run-State Pattern"),
    ):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert words in text
        assert LICENSE in text
