"""Fast commands for the documents' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kfm_dagster_tests.docs.forked import commands_of_forks


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Provide the variables of a shell whose `kfm` and `python` are forks."""
    with commands_of_forks(tmp_path_factory.mktemp("forks")) as path:
        yield {"PATH": path}
