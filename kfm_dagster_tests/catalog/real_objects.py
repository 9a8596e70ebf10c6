"""Objects of every dataset, real or from the demo, and the Items that the chain builds from files.

Belongs here: the choice of objects, keys for files that are stored without a key, and Items from files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.samples.gefs import make_gefs
from kfm_dagster.demo.samples.goes_abi import make_goes_abi
from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.demo.samples.rapid_refresh import make_refs, make_rrfs, make_rtma
from kfm_dagster.operators.stac_register import may_register, stac_register
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import metadata_of, unit_of


def item_of_file(contracts: ContractRegistry, root: Path, path: str) -> dict[str, Any]:
    """Return the Item of the file `root/bucket/key`; `path` is `bucket/key`."""
    bucket, key = path.split("/", 1)
    contract = contracts.route(bucket=bucket, key=key).contract
    return _item(contracts, extracted(contract.id, root, path))


def _item(contracts: ContractRegistry, envelope: Envelope) -> dict[str, Any]:
    contract, grammar = contracts[envelope.dataset], contracts.grammars[envelope.dataset]
    return dict(stac_register(envelope, contract=contract, grammar=grammar).item)


def items_of_real_objects(
    contracts: ContractRegistry, objects: Path, datasets: Collection[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and Item of each real object that matches a contract of these datasets."""
    for file in sorted(path for path in objects.rglob("*") if path.is_file()):
        path = file.relative_to(objects).as_posix()
        bucket, key = path.split("/", 1)
        route = contracts.route(bucket=bucket, key=key)
        if route.kind is not KeyKind.DATA or route.contract is None:
            continue
        if datasets is not None and route.contract.id not in datasets:
            continue
        envelope = extracted(route.contract.id, objects, path)
        if may_register(envelope):
            yield path, _item(contracts, envelope)


def extracted(dataset: str, root: Path, path: str) -> Envelope:
    """Return the envelope of the file `root/bucket/key` after metadata-extract."""
    bucket, key = path.split("/", 1)
    content = (root / path).read_bytes()
    etag = hashlib.md5(content).hexdigest()
    checked = Integrity(status=CheckStatus.OK, actual_size_bytes=len(content), actual_etag=etag)
    envelope = unit_of(dataset, key, bucket=bucket, object_version=etag, object_size=None, integrity=checked)

    def sidecar(suffix: str) -> BytesSource | None:
        beside = root / (path + suffix)
        return BytesSource(beside.read_bytes()) if beside.is_file() else None

    return envelope.evolve(metadata=metadata_of(envelope, BytesSource(content), open_sidecar=sidecar))


_RUN = datetime(2025, 4, 2, 12, tzinfo=UTC)

REAL: Mapping[str, tuple[str, ...]] = {
    "cfs": ("flxf2026080506.01.2026080500.grb2",),
    "gfs": ("gfswave.t18z.atlocn.0p16.f001.grib2", "gfs.t12z.pgrb2.0p25.f023", "gfs.t12z.sfluxgrbf006.grib2"),
    "ghcnd": ("AGE00147704.csv.gz", "1763.csv.gz", "0_rebuilt_0.snappy.parquet"),
    "ghcnh": ("GHCNh_FPI0000NTAT_por.psv", "GHCNh_USW00013967_por.psv", "GHCNh_USW00026442_por.psv"),
    "goes-abi": (
        "OR_ABI-L1b-RadM1-M6C01_G16_s20200010001262_e20200010001320_c20200010001364.nc",
        "OR_ABI-L1b-RadC-M6C06_G17_s20193002001196_e20193002003575_c20193002004003.nc",
        "OR_ABI-L2-CMIPM1-M3C03_G16_s20171931811268_e20171931811326_c20171931811389.nc",
        "OR_ABI-L2-LSTC-M6_G16_s20200472301168_e20200472303540_c20200472304538.nc",
        "OR_ABI-L2-FDCC-M6_G17_s20193002001196_e20193002003569_c20193002004132.nc",
    ),
    "goes-glm": ("OR_GLM-L2-LCFA_G18_s20230261900000_e20230261900200_c20230261900213.nc",),
    "hrrr": ("hrrr.t00z.wrfsfcf12.grib2", "hrrr.t06z.wrfsfcf01.grib2", "hrrr.t09z.wrfsubhf01.grib2"),
    "mrms": ("MRMS_MultiSensor_QPE_01H_Pass1_00.00_20221024-015800.grib2.gz",),
    "naqfc": ("aqm.t12z.ave_1hr_pm25.20240516.227.grib2",),
    "nclimgrid-daily": ("prcp-202201-grd-prelim.nc",),
    "nclimgrid-monthly": ("nclimgrid_tavg.nc",),
    "ndfd": ("ds.maxt.bin",),
    "nexrad-l2": ("KTLX20140101_000624_V06.gz", "KCRP20200101_000431_V06"),
    "nexrad-l2-chunks": ("20260328-201457-055-E",),
    "nwm-retrospective": ("202108231300.CHRTOUT_DOMAIN1", "201108260000.LDASIN_DOMAIN1"),
    "ocean": ("oisst-avhrr-v02r01.20220913.nc",),
    "sea-ice-cdr": ("seaice_conc_daily_sh_20211231_f17_v04r00.nc",),
    "sea-ice-cdr-monthly": ("seaice_conc_monthly_nh_202112_f17_v04r00.nc",),
    "surface-obs": ("720538-00164-2020.gz",),
}
"""Files stored under their own keys: the last parts of the keys."""

NBM = "noaa-nbm-grib2-pds/blend.20250901/00/core"
FILES: Mapping[str, Mapping[str, str]] = {
    # A part of the object with this key.
    "nbm": {
        "nbm/blend.t00z.core.f001.tmp.co.grib2": f"{NBM}/blend.t00z.core.f001.co.grib2",
    },
    # Real objects, and documented grids with invented fields.
    "rap": {"rap/rap.tsoil.gdt32769.grib2": "noaa-rap-pds/rap.20230910/rap.t00z.wrfnatf01.grib2"},
    "rrfs": {
        "synthetic-grids/rrfs.t00z.2dfld.13km.f001.na.SYNTHETIC.grib2": (
            "noaa-rrfs-ops-pds/rrfs.20260924/00/rrfs.t00z.2dfld.13km.f001.na.grib2"
        )
    },
    "rtma": {
        "synthetic-grids/rtma2p5.t00z.2dvaranl_ndfd.grb2_wexp.SYNTHETIC": (
            "noaa-rtma-pds/rtma2p5.20260810/rtma2p5.t00z.2dvaranl_ndfd.grb2_wexp"
        ),
    },
    # Named by the volume scan's start, as by Unidata.
    "nexrad-l3": {
        "nexrad-l3/KOUN_SDUS54_N0QTLX_201305202016": "unidata-nexrad-level3/TLX_N0Q_2013_05_20_20_16_43",
        "nexrad-l3/Level3_MCI_TR0_20160526_2154.nids": "unidata-nexrad-level3/MCI_TR0_2016_05_26_21_54_42",
    },
}
"""Files stored without a key, each with a key under which such an object is published."""


def write_objects(root: Path, data: Path, dataset: str) -> list[str]:
    """Write a dataset's objects and sidecars below `root`; return the paths that get an Item."""
    paths = []
    for name in REAL.get(dataset, ()):
        (real,) = (data / "objects").rglob(name)
        # Find sidecars, too, whose names are longer, and a volume's other chunks, whose suffixes differ.
        for file in real.parent.glob(name.removesuffix("055-E") + "*"):
            _write(root, file.relative_to(data / "objects").as_posix(), file.read_bytes())
        paths.append(real.relative_to(data / "objects").as_posix())
    for name, path in FILES.get(dataset, {}).items():
        _write(root, path, (data / "files" / name).read_bytes())
        paths.append(path)
    for path, content in _samples(dataset).items():
        _write(root, path, content)
        paths += [] if path.endswith(".idx") else [path]
    return paths


def _write(root: Path, path: str, content: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)


_NOON = datetime(2026, 9, 20, 12, tzinfo=UTC)
_SAMPLES: Mapping[str, tuple[str, Callable[[], tuple[str, bytes, str]]]] = {
    "hrrr": ("noaa-hrrr-bdp-pds", partial(make_hrrr, run=_RUN, lead=1)),
    "gefs": ("noaa-gefs-pds", partial(make_gefs, run=_RUN, lead=3)),
    "refs": ("noaa-rrfs-ops-pds", partial(make_refs, run=_NOON, lead=6, product="prob")),
    "rrfs": ("noaa-rrfs-ops-pds", partial(make_rrfs, run=_NOON, lead=1, member=1)),
    "urma": ("noaa-urma-pds", partial(make_rtma, run=_NOON, system="urma2p5")),
}
"""Bucket and maker of a sample with an index."""


def _samples(dataset: str) -> dict[str, bytes]:
    """Return the dataset's samples of objects that have no real file here."""
    if dataset == "goes-abi":
        key, content = make_goes_abi(product="ABI-L2-MCMIPC", start=_RUN, satellite=19, band=None)
        return {f"noaa-goes19/{key}": content}
    if dataset not in _SAMPLES:
        return {}
    bucket, make = _SAMPLES[dataset]
    key, content, index = make()
    return {f"{bucket}/{key}": content, f"{bucket}/{key}.idx": index.encode()}
