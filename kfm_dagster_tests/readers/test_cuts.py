"""Samples of every reader cut anywhere: refused, or suspect where they may be whole in themselves."""

from __future__ import annotations

import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster_tests.fuzz.specimens import SUBJECTS, places
from kfm_dagster_tests.readers.reading import header_of, is_unchecked, outcome

CUT = {MetadataIssue.TRUNCATED_OBJECT, MetadataIssue.UNREADABLE_FORMAT, MetadataIssue.INCOMPLETE_PRODUCT_METADATA}
PLACES = 40
"""Structures of a specimen that it is cut at."""
STREAMS = ("grib2-gzip", "isd")


@pytest.mark.clause("OPR-07", "OPR-20", "BEY-04")
@pytest.mark.parametrize("name", sorted(SUBJECTS.keys() - {"grib2", "grib2-idx"}))
def test_a_sample_cut_anywhere_is_not_ok(name: str) -> None:
    subject = SUBJECTS[name]
    for specimen in subject.samples[:8]:
        content, groups = specimen.content, specimen.groups
        size, structures = len(content), places(content)
        # Tenths, the last bytes, the beginnings of files and blocks, and structures with a byte to either side.
        ends = {size * tenth // 10 for tenth in range(10)} | {size - away for away in range(1, 10)}
        ends |= {0, 4, 8, 48, 96, 4096, 1 << 16}
        ends |= {at + by for at in structures[:: len(structures) // PLACES + 1] for by in (-1, 0, 1)}
        for end in sorted(end for end in ends if 0 <= end < size):
            found = outcome(header_of, subject.reader, content[:end], key=specimen.key, groups=groups)
            if subject.is_hdf5 or name in STREAMS:
                assert found is MetadataIssue.TRUNCATED_OBJECT, (specimen.key, end, found)
            else:
                assert is_unchecked(found) or found in CUT, (specimen.key, end, found)
