"""Readers leave no reference cycles: the bytes of an object go when its reader returns.

The collector of a run looks rarely (`kfm_dagster/cyclic_gc.py`), so a cycle that held an object's blocks would keep
them for thousands of units.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kfm_dagster.readers.base import ReadError
from kfm_dagster_tests.fuzz.specimens import SUBJECTS, Specimen
from kfm_dagster_tests.readers.reading import header_of


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.collect()
    # What other tests have loaded is not looked at again and again.
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def read(reader: str, specimen: Specimen, content: bytes) -> None:
    """Read an object whose result nobody keeps; a refusal is a result, too."""
    with suppress(ReadError):
        header_of(reader, content, key=specimen.key, groups=specimen.groups, index=specimen.index)


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("part", [1.0, 0.5], ids=["whole", "cut"])
def test_what_a_reader_has_read_goes_with_it(name: str, part: float) -> None:
    subject = SUBJECTS[name]
    for specimen in subject.samples:
        content = specimen.content[: int(len(specimen.content) * part)]
        # Once for what is cached for good.
        read(subject.reader, specimen, content)
        gc.collect()
        read(subject.reader, specimen, content)
        assert gc.collect() == 0, specimen.key
