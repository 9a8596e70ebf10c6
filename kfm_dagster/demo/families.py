"""Samples of every shipped dataset that the sample day lacks, for a demo of all datasets.

Belongs here: the choice of objects, a few of each dataset, as files. Does not belong here: making an object
(`samples/`), and the sample day with its bad objects (`sample_day.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kfm_dagster.demo.samples import cf_files, cfs, gefs, gfs, nbm, nexrad_level3, rapid_refresh
from kfm_dagster.demo.samples.ghcn import ghcn_daily_samples, ghcn_hourly_samples
from kfm_dagster.demo.samples.goes_glm import goes_glm_samples
from kfm_dagster.demo.samples.isd import isd_samples
from kfm_dagster.demo.samples.mrms import mrms_samples
from kfm_dagster.demo.samples.naqfc import naqfc_samples
from kfm_dagster.demo.samples.ndfd import ndfd_samples
from kfm_dagster.demo.samples.nexrad_chunks import nexrad_chunk_samples
from kfm_dagster.demo.samples.oisst import oisst_samples

Samples = Callable[[date, int], Iterator[tuple[str, str, bytes]]]

OF_EACH = 4
"""Number of objects of most datasets. OISST has two: a day's preliminary object, and the final one that replaces it."""
_LEADS = [{"lead": lead} for lead in (1, 3, 6, 12)]
_FLUXES = {"lead": 6, "product": "sfluxgrb", "resolution": ""}
_CLIMATE = [{"lead": 6 * number, "member": f"{number:02}"} for number in (1, 2, 3, 4)]
_MEMBERS = [{"lead": 6, "member": member} for member in ("c00", "p01", "avg", "spr")]
_RRFS: list[dict[str, Any]] = [{"lead": 1, "region": "na"}, {"lead": 1, "member": 1}, {"lead": 2, "minutes": True},
         {"lead": 6, "region": "hi", "product": "prslev"}]  # fmt: skip
_REFS: list[dict[str, Any]] = [{"lead": 1}, {"lead": 6}, {"lead": 1, "product": "prob"}, {"lead": 6, "product": "prob"}]
_RAP: list[dict[str, Any]] = [
    {"lead": 0},
    {"lead": 3},
    {"lead": 0, "product": "wrfprs"},
    {"lead": 3, "product": "wrfprs"},
]
_LEVEL_3 = (("KTLX", "N0B"), ("KFTG", "NVW"), ("KLOT", "NST"), ("TMCI", "TZ0"))
"""Sites and products, all listed in the contract; the last site is a TDWR."""


def _indexed(
    bucket: str,
    make: Callable[..., tuple[str, bytes, str]],
    options: Sequence[Mapping[str, Any]],
    *,
    since: date = date.min,
) -> Samples:
    """Return samples of a model's run on the day, or on `since` if later, each with its index."""

    def samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
        for chosen in options[:count]:
            key, content, index = make(run=datetime.combine(max(day, since), time(12), UTC), **chosen)
            yield bucket, key, content
            yield bucket, f"{key}.idx", index.encode()

    return samples


def _of_rrfs(make: Callable[..., tuple[str, bytes, str]], options: Sequence[Mapping[str, Any]]) -> Samples:
    return _indexed(rapid_refresh.RRFS_BUCKET, make, options, since=rapid_refresh.SAMPLE_DAY)


def _analyses(system: str) -> Samples:
    options = [{"system": system, "product": product} for product in ("anl", "err")]
    return _indexed(rapid_refresh.RTMA_BUCKETS[system], rapid_refresh.make_rtma, options)


def _level3(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    start = datetime.combine(day, time(22, 6, 36), UTC)
    for site, product in _LEVEL_3[:count]:
        yield nexrad_level3.BUCKET, *nexrad_level3.make_nexrad_level3(site=site, product=product, start=start)


FAMILIES: Mapping[str, tuple[Samples, int]] = MappingProxyType(
    {
        "cfs": (_indexed(cfs.BUCKET, cfs.make_cfs, _CLIMATE), OF_EACH),
        "gefs": (_indexed(gefs.BUCKET, gefs.make_gefs, _MEMBERS), OF_EACH),
        "gfs": (_indexed(gfs.BUCKET, gfs.make_gfs, [*_LEADS[:3], _FLUXES]), OF_EACH),
        "ghcnd": (ghcn_daily_samples, OF_EACH),
        "ghcnh": (ghcn_hourly_samples, OF_EACH),
        "goes-glm": (goes_glm_samples, OF_EACH),
        "mrms": (mrms_samples, OF_EACH),
        "naqfc": (naqfc_samples, OF_EACH),
        "nbm": (_indexed(nbm.BUCKET, nbm.make_nbm, _LEADS), OF_EACH),
        "nclimgrid-monthly": (cf_files.nclimgrid_monthly_samples, OF_EACH),
        "nclimgrid-daily": (cf_files.nclimgrid_daily_samples, OF_EACH),
        "ndfd": (ndfd_samples, OF_EACH),
        "nexrad-l2-chunks": (nexrad_chunk_samples, OF_EACH),
        "nexrad-l3": (_level3, OF_EACH),
        "nwm": (cf_files.nwm_samples, OF_EACH),
        "nwm-retrospective": (cf_files.nwm_retrospective_samples, OF_EACH),
        "ocean": (oisst_samples, 2),
        "ofs": (cf_files.ofs_samples, OF_EACH),
        "rap": (_indexed(rapid_refresh.RAP_BUCKET, rapid_refresh.make_rap, _RAP), OF_EACH),
        "refs": (_of_rrfs(rapid_refresh.make_refs, _REFS), OF_EACH),
        "rrfs": (_of_rrfs(rapid_refresh.make_rrfs, _RRFS), OF_EACH),
        "rtma": (_analyses("rtma2p5"), 2),
        "rtofs": (cf_files.rtofs_samples, OF_EACH),
        "sea-ice-cdr": (cf_files.sea_ice_samples, 2),
        "sea-ice-cdr-monthly": (cf_files.sea_ice_monthly_samples, 2),
        "surface-obs": (isd_samples, OF_EACH),
        "urma": (_analyses("urma2p5"), 2),
    }
)
"""Samples and their number, by dataset."""


def write_families(folder: Path, day: date) -> None:
    """Write the objects of a day as `folder`/bucket/key."""
    for samples, count in FAMILIES.values():
        for bucket, key, content in samples(day, count):
            path = folder / bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
