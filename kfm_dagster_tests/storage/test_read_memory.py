"""The client of S3 gives back at once what a request took: `make bench` has what a run's memory comes to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "delay"), [({}, "0"), ({"MIMALLOC_PURGE_DELAY": "25"}, "25")])
def test_the_client_is_told_to_give_memory_back_at_once_unless_somebody_chose(
    given: dict[str, str], delay: str
) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MIMALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", "import kfm_dagster.storage.s3"],
        # It prints its options as it is loaded, and what it makes of them.
        env={**environment, "MIMALLOC_VERBOSE": "1", **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"option 'purge_delay': {delay} " in done.stderr
