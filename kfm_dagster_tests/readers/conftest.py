"""A sample volume for the tests of NEXRAD Level II."""

from __future__ import annotations

import pytest

from kfm_dagster.demo.samples.nexrad_level2 import make_nexrad_level2
from kfm_dagster_tests.readers.nexrad_bytes import SITE, START, unpack


@pytest.fixture(scope="session")
def volume() -> bytes:
    return make_nexrad_level2(site=SITE, start=START)[1]


@pytest.fixture(scope="session")
def uncompressed(volume: bytes) -> bytes:
    """The sample with its LDM records unpacked: mutations reach the messages."""
    return unpack(volume)
