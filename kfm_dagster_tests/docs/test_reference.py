"""The reference has all exported names, the glossary names existing files, and files have their attributions."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from docs_site import api
from docs_site.text import prose
from kfm_dagster.configs import own_folder
from kfm_dagster.stages.card import REPLAY_PLAN, STATE_MACHINE


@pytest.mark.parametrize("room", api.ROOMS)
def test_every_exported_name_has_its_own_docstring_in_the_reference(room: str) -> None:
    package = importlib.import_module(f"kfm_dagster.{room}")
    assert package.__doc__
    assert sorted(set(package.__all__)) == package.__all__
    others = {name for name, value in vars(package).items() if not inspect.ismodule(value) and not name.startswith("_")}
    assert others == set(package.__all__)
    page = api.page(package.__name__.rpartition(".")[2])
    for name in package.__all__:
        exported = getattr(package, name)
        docstring = vars(exported).get("__doc__") if inspect.isclass(exported) else exported.__doc__
        # The generated docstring of a dataclass or pydantic model begins with its signature.
        assert docstring and not docstring.startswith(f"{name}("), name  # noqa: PT018, one rule
        assert exported.__module__.startswith(f"{package.__name__}."), name
        assert prose(inspect.cleandoc(docstring)) in page.split(f"\n## {name}\n")[1].split("\n## ")[0], name


ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| word ")
]


def test_a_word_of_the_glossary_names_existing_files() -> None:
    for word, meaning, location in ROWS:
        places = re.findall(r"`([\w/.]+)`", location)
        assert places, word
        for place in places:
            assert (ROOT / "kfm_dagster" / place).exists() or (ROOT / place).exists(), place
        assert len(meaning) > 20, word


SUGGESTED = 'Author: "Guanglin Tu"; Work: "Energy Filament Theory"; Source: energyfilament.org; License: CC BY 4.0.'
"""The attribution requested at the end of the pipeline card."""
LICENSE = "https://creativecommons.org/licenses/by/4.0/"


@pytest.mark.clause("PCS-23")
def test_files_derived_from_cc_by_documents_have_the_attributions() -> None:
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
