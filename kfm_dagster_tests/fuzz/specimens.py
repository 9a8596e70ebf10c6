"""The objects to mutate: small samples of every format, and real objects if present."""

from __future__ import annotations

import gzip
import io
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any

import h5py

from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.demo.families import FAMILIES
from kfm_dagster.demo.samples import cfs, gefs, gfs, ghcn, goes_abi, hrrr, naqfc, nbm, ndfd
from kfm_dagster.demo.samples.goes_glm import goes_glm_samples
from kfm_dagster.demo.samples.isd import isd_samples
from kfm_dagster.demo.samples.mrms import mrms_samples
from kfm_dagster.demo.samples.nexrad_chunks import nexrad_chunk_samples
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.demo.samples.nexrad_level3 import PRODUCTS as LEVEL3_PRODUCTS
from kfm_dagster.demo.samples.nexrad_level3 import make_nexrad_level3
from kfm_dagster.demo.samples.oisst import make_oisst
from kfm_dagster.readers import (
    ghcn_daily,
    ghcn_hourly,
    grib2,
    grib2_gzip,
    grib_index,
    isd,
    nexrad_end,
    nexrad_level3,
    nexrad_messages,
    parquet_footer,
    text_lines,
)
from kfm_dagster.readers.base import BLOCK_BYTES
from kfm_dagster.readers.ranges import MAX_BLOCKS
from kfm_dagster_tests.readers.nexrad_bytes import unpack
from kfm_dagster_tests.readers.reading import CONTRACTS, index_of, match_of

DATA = [Path(__file__).resolve().parents[3] / "shared" / name for name in ("data", "nodd")]
DAY = date(2025, 12, 3)
INDEX = ".idx"
SMALL = 16 * 1024
"""Objects larger than this many bytes are drawn less often, because they take longer to pack."""

_STRUCTURES = re.compile(
    rb"\x89HDF|OHDR|OCHK|FRHP|FHDB|FHIB|BTHD|BTLF|BTIN|GCOL|TREE|SNOD|HEAP"  # HDF5
    rb"|GRIB|7777|BZh|AR2V|ARCHIVE2|R(?:VOL|ELV|RAD)|D(?:REF|VEL|ZDR)|\r\r\n|\n|\x1f\x8b|\xff\xff"
)
_MAX_STRUCTURES = 4096
_NOT_NEEDED = ("Rad", "DQF", "esun", "kappa0", "planck_fk1", "planck_fk2", "planck_bc1", "planck_bc2")
"""Variables to delete, so that mutations hit structure more often."""


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """An object under its real key; `index` is its sidecar's content, if any."""

    dataset: str
    key: str
    content: bytes
    index: bytes | None = None

    @cached_property
    def groups(self) -> Mapping[str, str]:
        """Groups of the key grammar."""
        return match_of(self.dataset, self.key).groups

    @cached_property
    def weight(self) -> float:
        """The relative frequency at which the specimen is drawn."""
        return min(1.0, SMALL / max(len(self.content), 1))


@cache
def structure_offsets(content: bytes) -> tuple[int, ...]:
    """Return the offsets of structures of all formats: signatures, line ends, markers."""
    return tuple(match.start() for match in islice(_STRUCTURES.finditer(content), _MAX_STRUCTURES))


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The maximum of requests, and of requested bytes, for one object."""

    requests: int
    read_bytes: int


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A reader, the datasets of its objects, and its bounds.

    `of_index`: the sidecar is mutated. `along`: the chunk index of an accepted object is also read, as a step along
    this dimension.
    """

    reader: str
    datasets: tuple[str, ...]
    bounds: Bounds
    of_index: bool = False
    is_hdf5: bool = False
    of_lines: bool = False
    """Plain text, in which only the object's size and ETag show a cut at the end of a line."""
    along: str | None = None

    @cached_property
    def specimens(self) -> tuple[Specimen, ...]:
        """Samples, and the real objects of the data folder."""
        specimens = [*self.samples, *_real(self.datasets)]
        return tuple(item for item in specimens if item.index is not None or not self.of_index)

    @cached_property
    def samples(self) -> tuple[Specimen, ...]:
        """The samples, which need no data folder."""
        return tuple(_SAMPLES[self.reader]())


_CF = ("nclimgrid-daily", "nwm", "nwm-retrospective", "ofs", "rtofs", "sea-ice-cdr", "sea-ice-cdr-monthly")
"""Datasets of CF NetCDF files other than OISST."""
_HDF5 = Bounds(requests=MAX_BLOCKS, read_bytes=MAX_BLOCKS * BLOCK_BYTES)
MODELS = ("hrrr", "gfs", "gefs", "nbm", "cfs", "naqfc", "ndfd", "rap", "refs", "rrfs", "rtma", "urma")
# For the first message, the index and the last message; or for each section of the walked messages, and the end.
_GRIB2_REQUESTS = 8 * grib2.WALK_MESSAGES + 6
_GRIB2 = Bounds(
    requests=_GRIB2_REQUESTS,
    read_bytes=_GRIB2_REQUESTS * grib2.FIRST_BYTES + grib2.LAST_MESSAGE_BYTES + grib_index.MAX_INDEX_BYTES,
)
_CHUNK_BLOCKS = -(-(nexrad_messages.MAX_RECORD_BYTES + 28) // nexrad_messages.READ_BYTES)

SUBJECTS: Mapping[str, Subject] = {
    "goes-abi": Subject(reader="goes-abi", datasets=("goes-abi",), bounds=_HDF5, is_hdf5=True, along="t"),
    "goes-glm": Subject(reader="goes-glm", datasets=("goes-glm",), bounds=_HDF5, is_hdf5=True),
    "netcdf-grid": Subject(reader="netcdf-grid", datasets=("ocean", *_CF), bounds=_HDF5, is_hdf5=True),
    "nexrad-level2": Subject(
        reader="nexrad-level2",
        datasets=("nexrad-l2",),
        bounds=Bounds(
            requests=16 + nexrad_end.MAX_GZIP_BYTES // nexrad_end.GZIP_READ_BYTES,
            read_bytes=16 * nexrad_messages.READ_BYTES + nexrad_end.MAX_GZIP_BYTES,
        ),
    ),
    "nexrad-chunk": Subject(
        reader="nexrad-chunk",
        datasets=("nexrad-l2-chunks",),
        bounds=Bounds(requests=2, read_bytes=_CHUNK_BLOCKS * nexrad_messages.READ_BYTES),
    ),
    "nexrad-level3": Subject(
        reader="nexrad-level3",
        datasets=("nexrad-l3",),
        bounds=Bounds(requests=2, read_bytes=nexrad_level3.MAX_OBJECT_BYTES),
    ),
    "grib2": Subject(reader="grib2", datasets=MODELS, bounds=_GRIB2),
    "grib2-idx": Subject(reader="grib2", datasets=MODELS, bounds=_GRIB2, of_index=True),
    "grib2-gzip": Subject(
        reader="grib2-gzip",
        datasets=("mrms",),
        bounds=Bounds(requests=1, read_bytes=grib2_gzip.MAX_PACKED_BYTES),
    ),
    "isd": Subject(
        reader="isd",
        datasets=("surface-obs",),
        bounds=Bounds(requests=1 + isd.MAX_OBJECT_BYTES // text_lines.READ_BYTES, read_bytes=isd.MAX_OBJECT_BYTES),
    ),
    "ghcn-hourly": Subject(
        reader="ghcn-hourly",
        datasets=("ghcnh",),
        of_lines=True,
        bounds=Bounds(
            requests=1 + ghcn_hourly.MAX_OBJECT_BYTES // text_lines.READ_BYTES, read_bytes=ghcn_hourly.MAX_OBJECT_BYTES
        ),
    ),
    "ghcn-daily": Subject(
        reader="ghcn-daily",
        datasets=("ghcnd",),
        bounds=Bounds(
            requests=1 + ghcn_daily.MAX_OBJECT_BYTES // text_lines.READ_BYTES,
            read_bytes=max(ghcn_daily.MAX_OBJECT_BYTES, parquet_footer.MAX_FOOTER_BYTES + BLOCK_BYTES),
        ),
    ),
}
"""Every reader, and the sidecar of GRIB2, by their names in the soak."""


def _grib2() -> Iterator[Specimen]:
    """Yield every kind of object with its index, of an analysis and of forecasts."""
    run = datetime(2025, 12, 3, 6, tzinfo=UTC)
    objects_of_models: list[tuple[str, tuple[str, bytes, str]]] = []
    for lead in (0, 7, 384):
        kinds = product(hrrr.REGIONS, hrrr.PRODUCTS if lead < 384 else ())
        objects_of_models += [
            ("hrrr", hrrr.make_hrrr(run=run, lead=lead, product=kind, region=region)) for region, kind in kinds
        ]
        objects_of_models += [
            ("gfs", gfs.make_gfs(run=run, lead=lead, product=kind, resolution=grid)) for kind, grid in gfs.PRODUCTS
        ]
        objects_of_models += [("gfs", gfs.make_gfs_wave(run=run, lead=lead, region=region)) for region, _ in gfs.WAVES]
    objects_of_models.append(("gfs", gfs.make_gfs(run=run, lead=9, model="gdas")))
    members = product(("c00", "p30", "avg", "spr"), gefs.PRODUCTS, (0, 9, 240))
    objects_of_models += [
        ("gefs", gefs.make_gefs(run=run, lead=lead, member=member, product=kind)) for member, kind, lead in members
    ]
    kinds = product(nbm.REGIONS, nbm.PRODUCTS, (1, 36, 264))
    objects_of_models += [
        ("nbm", nbm.make_nbm(run=run, lead=lead, product=kind, region=region)) for region, kind, lead in kinds
    ]
    objects_of_models += [("cfs", cfs.make_cfs(run=run, lead=lead)) for lead in (6, 240)]
    for dataset in ("rap", "refs", "rrfs", "rtma", "urma"):
        samples, count = FAMILIES[dataset]
        objects = {key: content for _, key, content in samples(DAY, count)}
        objects_of_models += [
            (dataset, (key, objects[key], objects[key + INDEX].decode())) for key in objects if INDEX not in key
        ]
    for dataset, (key, content, index) in objects_of_models:
        yield Specimen(dataset=dataset, key=key, content=content, index=index.encode())
    # Objects without indexes: all leads in one object, probabilities, WMO headings before each message.
    headed = [("ndfd", ndfd.make_ndfd(issued=run, element=element)) for element in ndfd.ELEMENTS]
    for dataset, (key, content) in (("naqfc", naqfc.make_naqfc(run=run)), *headed):
        yield Specimen(dataset=dataset, key=key, content=content)


def _goes_abi() -> Iterator[Specimen]:
    start = datetime(2025, 12, 3, 5, 1, 17, 600_000, UTC)
    yield from _plain("goes-abi", islice(goes_abi.goes_abi_samples(DAY, 6), 6))
    for name, band in (("ABI-L1b-RadC", 13), ("ABI-L2-MCMIPC", None), ("ABI-L1b-RadM1", 2)):
        key, content = goes_abi.make_goes_abi(product=name, start=start, satellite=19, band=band)
        yield from (
            Specimen(dataset="goes-abi", key=key, content=_rewritten(content, libver=libver, **options))
            for libver, options in (
                ("earliest", {}),
                ("v108", {}),
                ("v110", {}),
                ("earliest", {"chunks": (50,), "compression": "gzip", "shuffle": True, "fletcher32": True}),
            )
        )


def _goes_glm() -> Iterator[Specimen]:
    for specimen in _plain("goes-glm", islice(goes_glm_samples(DAY, 6), 6)):
        yield specimen
        yield Specimen(dataset="goes-glm", key=specimen.key, content=_rewritten(specimen.content, libver="v108"))


def _netcdf_grid() -> Iterator[Specimen]:
    for day, preliminary in ((DAY, False), (DAY + timedelta(days=1), True)):
        key, content = make_oisst(day, preliminary=preliminary)
        yield Specimen(dataset="ocean", key=key, content=content)
        yield Specimen(dataset="ocean", key=key, content=_rewritten(content, libver="v108", scales=True))

    for dataset in _CF:
        samples, count = FAMILIES[dataset]
        yield from _plain(dataset, (sample for sample in samples(DAY, count) if not sample[1].endswith(".mnf")))


def _nexrad_level2() -> Iterator[Specimen]:
    for specimen in _plain("nexrad-l2", islice(nexrad_level2_samples(DAY, 3), 3)):
        plain = unpack(specimen.content)
        for content in (specimen.content, plain, gzip.compress(plain, 1), gzip.compress(specimen.content, 1)):
            yield Specimen(dataset="nexrad-l2", key=specimen.key, content=content)


def _nexrad_level3() -> Iterator[Specimen]:
    """Yield each product as stored, and as transmitted in zlib frames."""
    start = datetime(2025, 12, 3, 5, tzinfo=UTC)
    for name, kind in LEVEL3_PRODUCTS.items():
        # Codes from 180 on are of TDWR products.
        site = "TOKC" if kind.code >= 180 else "KICT"
        key, content = make_nexrad_level3(site=site, product=name, start=start)
        yield Specimen(dataset="nexrad-l3", key=key, content=content)
        heading = content[: content.index(b"\r\r\n", content.index(b"\r\r\n") + 3) + 3]
        frames = b"".join(zlib.compress(content[at : at + 4000]) for at in range(0, len(content), 4000))
        sent = b"\x01\r\r\n123 \r\r\n" + heading + frames + b"\r\r\n\x03"
        yield Specimen(dataset="nexrad-l3", key=key, content=sent)


def _plain(dataset: str, samples: Iterable[tuple[str, str, bytes]]) -> Iterator[Specimen]:
    for _, key, content in samples:
        yield Specimen(dataset=dataset, key=key, content=content)


_SAMPLES: Mapping[str, Any] = {
    "goes-abi": _goes_abi,
    "goes-glm": _goes_glm,
    "netcdf-grid": _netcdf_grid,
    "nexrad-level2": _nexrad_level2,
    "nexrad-chunk": lambda: _plain("nexrad-l2-chunks", islice(nexrad_chunk_samples(DAY, 8), 8)),
    "nexrad-level3": _nexrad_level3,
    "grib2": _grib2,
    "grib2-gzip": lambda: _plain("mrms", islice(mrms_samples(DAY, 8), 8)),
    "ghcn-daily": lambda: _plain("ghcnd", islice(ghcn.ghcn_daily_samples(DAY, 6), 6)),
    "ghcn-hourly": lambda: _plain("ghcnh", islice(ghcn.ghcn_hourly_samples(DAY, 4), 4)),
    "isd": lambda: _plain("surface-obs", islice(isd_samples(DAY, 4), 4)),
}


def _real(datasets: tuple[str, ...]) -> Iterator[Specimen]:
    """Yield the real objects of the datasets under their keys."""
    for root, path in ((data / "objects", path) for data in DATA for path in sorted(data.glob("objects/**/*"))):
        bucket, _, key = path.relative_to(root).as_posix().partition("/")
        if not path.is_file() or path.name.endswith(INDEX):
            continue
        route = CONTRACTS.route(bucket=bucket, key=key)
        if route.kind is KeyKind.DATA and route.contract is not None and route.contract.id in datasets:
            sidecar = path.with_name(path.name + INDEX)
            index = sidecar.read_bytes() if sidecar.is_file() else None
            specimen = Specimen(dataset=route.contract.id, key=key, content=path.read_bytes(), index=index)
            yield _indexed(specimen) if specimen.dataset == "hrrr" else specimen


def _indexed(specimen: Specimen) -> Specimen:
    """Return the specimen, a part of an object, with an index as wgrib2 would write it."""
    run = datetime.strptime(specimen.groups["date"] + specimen.groups["cycle"], "%Y%m%d%H").replace(tzinfo=UTC)
    lead = int(specimen.groups["lead"])
    # Drop the first bytes of a following message.
    content = specimen.content[: specimen.content.rindex(b"7777") + 4]
    index = index_of(content, run=run, step=f"{lead} hour fcst" if lead else "anl")
    return Specimen(dataset=specimen.dataset, key=specimen.key, content=content, index=index)


def _rewritten(content: bytes, *, libver: str, scales: bool = False, **axis_options: Any) -> bytes:
    """Return an HDF5 file's headers, without pixels, in another version of the format."""
    buffer = io.BytesIO()
    with h5py.File(io.BytesIO(content)) as source, h5py.File(buffer, "w", libver=libver) as target:
        target.attrs.update(source.attrs)
        for name in sorted(set(source) - set(_NOT_NEEDED)):
            variable = source[name]
            options = axis_options if name in {"x", "y"} else {}
            if variable.ndim >= 2:
                copy = target.create_dataset(name, shape=variable.shape, dtype=variable.dtype)
            else:
                copy = target.create_dataset(name, data=variable[...], **options)
            copy.attrs.update({key: value for key, value in variable.attrs.items() if not key.endswith("_LIST")})
        for name in source if scales else ():
            for axis, scale in enumerate(source[name].dims):
                if len(scale):
                    target[name].dims[axis].attach_scale(target[scale[0].name])
    return buffer.getvalue()


def chosen(subject: Subject, rng: random.Random) -> Specimen:
    """Draw a specimen; small specimens are drawn more often."""
    specimens = subject.specimens
    return rng.choices(specimens, weights=[specimen.weight for specimen in specimens])[0]
