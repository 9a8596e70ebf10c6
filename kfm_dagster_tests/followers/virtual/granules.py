"""Granules with pixels: small NetCDF-4 objects like the ABI's, and changes of their Items.

Belongs here: objects, Items with the fields that a follower needs, and the values that an independent reader reads.
Does not belong here: the demo's samples, which have only headers.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster_tests.followers.changes import change

DAY = datetime(2025, 6, 1, tzinfo=UTC)
NAME = "G19_ABI-L1b-RadM1_C13"
J2000 = datetime(2000, 1, 1, 12, tzinfo=UTC)
numbers = count(1)


@dataclass(frozen=True, kw_only=True)
class Granule:
    """An object of a mesoscale scan; another `revision` is another object of the same Item."""

    minute: int = 0
    west: float = 0.01
    scale: float = 0.05
    revision: int = 0
    zlib: bool = True
    shuffle: bool = True
    fletcher32: bool = False
    band: int = 13
    blank: bool = False
    """Whether no pixel was written."""

    @property
    def start(self) -> datetime:
        return DAY + timedelta(minutes=self.minute)

    @property
    def item_id(self) -> str:
        start, end = (stamp(self.start + timedelta(seconds=seconds)) for seconds in (0, 6))
        return f"OR_ABI-L1b-RadM1-M6C{self.band:02}_G19_s{start}_e{end}"

    @property
    def key(self) -> str:
        created = stamp(self.start + timedelta(seconds=10 + self.revision))
        return f"ABI-L1b-RadM/{self.start:%Y/%j/%H}/{self.item_id}_c{created}.nc"

    @property
    def uri(self) -> str:
        return f"s3://noaa-goes19/{self.key}"

    @property
    def content(self) -> bytes:
        return _content(self)


@lru_cache(maxsize=256)
def _content(granule: Granule) -> bytes:
    return netcdf_of(lambda file: _write(file, granule))


def netcdf_of(write: Callable[[netCDF4.Dataset], None]) -> bytes:
    """Return a file's content as written to disk, because netCDF4 pads files that are written in memory."""
    with tempfile.NamedTemporaryFile(suffix=".nc") as temporary:
        with netCDF4.Dataset(temporary.name, "w") as file:
            write(file)
        return temporary.read()


def _write(file: netCDF4.Dataset, granule: Granule) -> None:
    height, width = 30, 50
    for name, length in (("y", height), ("x", width), ("number_of_time_bounds", 2), ("band", 1)):
        file.createDimension(name, length)
    file.setncatts({"title": "ABI L1b Radiances", "id": f"of one granule: {granule.minute}"})
    for name, length, offset in (("y", height, 0.1), ("x", width, granule.west)):
        axis = file.createVariable(name, "i2", (name,), fill_value=False)
        axis.setncatts({"scale_factor": np.float32(56e-6), "add_offset": np.float32(offset), "units": "rad"})
        axis.set_auto_maskandscale(False)
        axis[:] = np.arange(length)
    values = np.random.default_rng([granule.minute, granule.revision])
    how = {"zlib": granule.zlib, "shuffle": granule.shuffle, "fletcher32": granule.fletcher32, "chunksizes": (12, 20)}
    for name, kind, fill in (("Rad", "i2", 1023), ("DQF", "i1", -1)):
        image = file.createVariable(name, kind, ("y", "x"), fill_value=fill, **how)
        image.setncatts(
            {"_Unsigned": "true", "coordinates": "band_id t y x", "percent_good": np.float32(values.random())}
        )
        image.set_auto_maskandscale(False)
        if name == "Rad":
            image.setncatts({"scale_factor": np.float32(granule.scale), "add_offset": np.float32(-1.5)})
            image.grid_mapping = "goes_imager_projection"
        if not granule.blank:
            image[:] = values.integers(0, 1024 if name == "Rad" else 5, (height, width))
    seconds = (granule.start - J2000).total_seconds()
    for name, dimensions, value in (
        ("t", (), seconds + 3),
        ("time_bounds", ("number_of_time_bounds",), [seconds, seconds + 6]),
        ("band_id", ("band",), [granule.band]),
        ("planck_fk1", (), 10803.3 + granule.minute),
    ):
        small = file.createVariable(name, "i1" if name == "band_id" else "f8", dimensions)
        small[:] = value
    file["t"].setncatts({"units": "seconds since 2000-01-01 12:00:00", "bounds": "time_bounds"})
    mapping = file.createVariable("goes_imager_projection", "i4", ())
    mapping.setncatts({"grid_mapping_name": "geostationary", "perspective_point_height": 35786023.0})


def stamp(moment: datetime) -> str:
    return f"{moment:%Y%j%H%M%S}0"


def put(root: Path, granules: Iterable[Granule]) -> None:
    """Store the granules at `<bucket>/<key>`."""
    for granule in granules:
        path = root / "noaa-goes19" / granule.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(granule.content)


def change_of(granule: Granule, *, kind: ChangeKind = ChangeKind.CREATED) -> ItemChange:
    """Return a change of a granule's Item; a withdrawal carries no Item."""
    content = granule.content
    return change(
        next(numbers),
        {
            "id": granule.item_id,
            "collection": "goes-abi",
            "properties": {"datetime": granule.start.isoformat()},
            "assets": {
                "data": {
                    "href": granule.uri,
                    "file:size": len(content),
                    "file:checksum": "d50110" + hashlib.md5(content).hexdigest(),
                }
            },
        },
        kind=kind,
    )


def stored_values(content: bytes) -> dict[str, Any]:
    """Return an object's stored values as netCDF4 reads them, unsigned where the file declares unsigned values."""
    with netCDF4.Dataset("given", memory=content) as file:
        file.set_auto_maskandscale(False)
        values = {name: np.asarray(variable[:]) for name, variable in file.variables.items()}
        unsigned = [name for name in values if getattr(file[name], "_Unsigned", None) == "true"]
        return values | {name: values[name].view(values[name].dtype.str.replace("i", "u")) for name in unsigned}


def decoded_values(content: bytes, name: str = "Rad") -> Any:
    """Return an image's or axis' values as netCDF4 decodes them, with NaN for missing values."""
    with netCDF4.Dataset("given", memory=content) as file:
        return np.ma.filled(file[name][:].astype("f8"), np.nan)
