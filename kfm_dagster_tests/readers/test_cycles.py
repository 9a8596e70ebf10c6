"""Readers leave no reference cycles: the bytes of an object go when its reader returns.

The collector of a run looks rarely (`kfm_dagster/cyclic_gc.py`), so a cycle that held an object's blocks would keep
them for thousands of units.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kfm_dagster.readers.base import ByteSource, ReadError, ReadRequest
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster.readers.registry import READERS
from kfm_dagster_tests.fuzz.specimens import INDEX, SUBJECTS, Specimen


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

    def sidecar(suffix: str) -> ByteSource | None:
        return BytesSource(specimen.index) if specimen.index is not None and suffix == INDEX else None

    request = ReadRequest(key=specimen.key, groups=specimen.groups, source=BytesSource(content), sidecar=sidecar)
    with suppress(ReadError):
        READERS[reader](request)


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
