"""The API reference: built from the rooms that others import, each of whose names says what it is."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest

from docs_site import api
from docs_site.text import prose


@pytest.fixture(params=api.ROOMS)
def room(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"kfm_dagster.{request.param}")


def test_every_exported_name_has_a_docstring_of_its_own(room: ModuleType) -> None:
    assert room.__doc__
    assert sorted(set(room.__all__)) == room.__all__
    for name in room.__all__:
        exported = getattr(room, name)
        said = vars(exported).get("__doc__") if inspect.isclass(exported) else exported.__doc__
        # What a dataclass or a pydantic model without one gets begins with its signature.
        assert said and not said.startswith(f"{name}("), name  # noqa: PT018, one rule
        assert exported.__module__.startswith(f"{room.__name__}."), name


def test_the_room_exports_nothing_that_it_does_not_list(room: ModuleType) -> None:
    others = {name for name, value in vars(room).items() if not inspect.ismodule(value) and not name.startswith("_")}
    assert others == set(room.__all__)


def test_the_reference_has_each_exported_name_with_what_it_says_of_itself(room: ModuleType) -> None:
    page = api.page(room.__name__.rpartition(".")[2])
    for name in room.__all__:
        said = inspect.getdoc(getattr(room, name))
        assert said, name
        assert prose(said) in page.split(f"\n## {name}\n")[1].split("\n## ")[0], name
