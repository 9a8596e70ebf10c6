"""Samples of CF files: climate grids, sea ice, the National Water Model, ocean forecasts.

No chunk of a field is written, so that every cell is the fill value.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import h5py
import numpy as np

from kfm_dagster.demo.samples.netcdf4 import annotate, attach, axis, dimension, variable

Attributes = Mapping[str, Any]
Sample = tuple[str, str, bytes]
"""Bucket, key and content."""

_LON: dict[str, Any] = {"long_name": "longitude", "standard_name": "longitude", "units": "degrees_east"}
_LAT: dict[str, Any] = {"long_name": "latitude", "standard_name": "latitude", "units": "degrees_north"}
_SPHERE = (
    'PROJCS["Lambert_Conformal_Conic",GEOGCS["GCS_Sphere",DATUM["D_Sphere",SPHEROID["Sphere",6370000.0,0.0]],'
    'PRIMEM["Greenwich",0.0],UNIT["Degree",0.0174532925199433]],PROJECTION["Lambert_Conformal_Conic_2SP"],'
    'PARAMETER["false_easting",0.0],PARAMETER["false_northing",0.0],PARAMETER["central_meridian",-97.0],'
    'PARAMETER["standard_parallel_1",30.0],PARAMETER["standard_parallel_2",60.0],'
    'PARAMETER["latitude_of_origin",40.0],UNIT["Meter",1.0]]'
)
_HUGHES = (
    'PROJCS["NSIDC Sea Ice Polar Stereographic",GEOGCS["Unspecified datum based upon the Hughes 1980 ellipsoid",'
    'DATUM["Not_specified_based_on_Hughes_1980_ellipsoid",SPHEROID["Hughes 1980",6378273,298.279411123061]],'
    'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]],UNIT["metre",1],PROJECTION["Polar_Stereographic"],'
    'PARAMETER["latitude_of_origin",{latitude}],PARAMETER["central_meridian",{meridian}],PARAMETER["scale_factor",1],'
    'PARAMETER["false_easting",0],PARAMETER["false_northing",0]]'
)


def _written(attributes: Attributes, write: Callable[[h5py.File], None]) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="earliest") as file:
        annotate(file, attributes)
        write(file)
    return buffer.getvalue()


def _clock(file: h5py.File, moments: Sequence[datetime], epoch: datetime, name: str = "time", number: int = 0) -> None:
    minutes = np.array([(moment - epoch) / timedelta(minutes=1) for moment in moments], "<f8")
    standard = "forecast_reference_time" if name == "reference_time" else "time"
    axis(file, name, minutes, number, {"standard_name": standard, "units": f"minutes since {epoch:%Y-%m-%d %H:%M:%S}"})


def _fields(file: h5py.File, names: Iterable[str], dimensions: Sequence[str], **attributes: Any) -> None:
    for name in names:
        shape = tuple(file[dimension].shape[0] for dimension in dimensions)
        field = file.create_dataset(name, shape=shape, dtype="<f4", chunks=shape, compression="gzip", fillvalue=-9999.0)
        attach(file, field, dimensions)
        annotate(field, {"_FillValue": np.array([-9999.0], "<f4"), **attributes})


def _degrees(file: h5py.File, west: float, south: float, shape: tuple[int, int], step: float) -> None:
    rows, columns = shape
    axis(file, "lat", (south + step * np.arange(rows)).astype("<f4"), 1, _LAT)
    axis(file, "lon", (west + step * np.arange(columns)).astype("<f4"), 2, _LON)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLIMATE_EPOCH = datetime(1800, 1, 1, tzinfo=UTC)


def nclimgrid(elements: Iterable[str], moments: Sequence[datetime]) -> bytes:
    """Make a file of the grid of the contiguous United States at 1/24 degree."""

    def write(file: h5py.File) -> None:
        _clock(file, moments, CLIMATE_EPOCH)
        _degrees(file, -124.6875, 24.5625, (596, 1385), 1 / 24)
        for name in elements:
            unit = "millimeter" if name == "prcp" else "degree_Celsius"
            _fields(file, [name], ["time", "lat", "lon"], units=unit, coordinates="time lat lon")

    return _written({"title": "nClimGrid", "Conventions": "CF-1.6, ACDD-1.3", "platform": "station"}, write)


def nclimgrid_daily_samples(day: date, count: int) -> Iterator[Sample]:
    """Yield a file for each of the first `count` elements, with a month's days up to `day`."""
    first = datetime(day.year, day.month, 1, tzinfo=UTC)
    for name in ("prcp", "tavg", "tmax", "tmin")[:count]:
        key = f"beta/by-month/{day:%Y/%m}/{name}-{day:%Y%m}-grd-prelim.nc"
        yield "noaa-nclimgrid-daily-pds", key, nclimgrid([name], [first + timedelta(days=n) for n in range(day.day)])


def nclimgrid_monthly_samples(day: date, count: int) -> Iterator[Sample]:
    """Yield the files of the first `count` elements, each for a year's months up to a day."""
    months = [datetime(day.year, number, 1, tzinfo=UTC) for number in range(1, day.month + 1)]
    for name in ("prcp", "tavg", "tmax", "tmin")[:count]:
        yield "noaa-nclimgrid-monthly-pds", f"nclimgrid_{name}.nc", nclimgrid([name], months)


def _sea_ice(day: date, *, north: bool, monthly: bool) -> bytes:
    columns, rows, west, top = (304, 448, -3850e3, 5850e3) if north else (316, 332, -3950e3, 4350e3)
    first = datetime.combine(day.replace(day=1) if monthly else day, time(), UTC)
    end = (first.replace(day=28) + timedelta(days=4)).replace(day=1) if monthly else first + timedelta(days=1)
    attributes = {
        "title": "NOAA/NSIDC Climate Data Record of Passive Microwave Sea Ice Concentration Version 4",
        "product_version": "v04r00",
        "processing_level": "NOAA Level 3",
        "time_coverage_start": f"{first:%Y-%m-%dT%H:%M:%SZ}",
        "time_coverage_end": f"{end - timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}",
    }

    def write(file: h5py.File) -> None:
        dimension(file, "tdim", 1, 0)
        dimension(file, "y", rows, 1)
        dimension(file, "x", columns, 2)
        epoch = datetime(1601, 1, 1, tzinfo=UTC)
        clock: dict[str, Any] = {"standard_name": "time", "axis": "T", "units": "days since 1601-01-01 00:00:00"}
        variable(file, "time", np.array([(first - epoch).days], "<f4"), dimensions=["tdim"], **clock)
        for name, values in (
            ("x", west + 25e3 * (np.arange(columns) + 0.5)),
            ("y", top - 25e3 * (np.arange(rows) + 0.5)),
        ):
            standard: dict[str, Any] = {
                "standard_name": f"projection_{name}_coordinate",
                "units": "meters",
                "axis": name.upper(),
            }
            variable(file, f"{name}grid", values.astype("<f4"), dimensions=[name], **standard)
        # As in real files, straight_vertical_longitude_from_pole is 180 degrees from the meridian of spatial_ref.
        sides = {"latitude": 70, "meridian": -45} if north else {"latitude": -70, "meridian": 0}
        mapping: dict[str, Any] = {
            "grid_mapping_name": "polar_stereographic",
            "straight_vertical_longitude_from_pole": sides["meridian"] + 180.0,
            "spatial_ref": _HUGHES.format(**sides),
        }
        variable(file, "projection", np.bytes_(b"x"), **mapping)
        fields = [f"{name}_seaice_conc{'_monthly' if monthly else ''}" for name in ("cdr", "nsidc_bt", "nsidc_nt")]
        _fields(file, fields, ["tdim", "y", "x"], units="1", grid_mapping="projection", coordinates="time ygrid xgrid")

    return _written(attributes, write)


def sea_ice_samples(day: date, count: int) -> Iterator[Sample]:
    """Yield the day's file of the first `count` hemispheres, each with its manifest."""
    yield from _both_hemispheres(day, count, f"daily/{day:%Y}/seaice_conc_daily_", f"{day:%Y%m%d}")


def sea_ice_monthly_samples(day: date, count: int) -> Iterator[Sample]:
    """Yield the month's file of the first `count` hemispheres, each with its manifest."""
    yield from _both_hemispheres(day, count, "monthly/seaice_conc_monthly_", f"{day:%Y%m}")


def _both_hemispheres(day: date, count: int, folder: str, stamp: str) -> Iterator[Sample]:
    for side in ("north", "south")[:count]:
        key = f"data/final/{side}/{folder}{side[0]}h_{stamp}_f17_v04r00.nc"
        content = _sea_ice(day, north=side == "north", monthly=len(stamp) == 6)
        yield "noaa-cdr-sea-ice-concentration-pds", key, content
        yield "noaa-cdr-sea-ice-concentration-pds", f"{key}.mnf", b"sample\n"


def _water(valid: datetime, run: datetime, fields: Iterable[str], *, reaches: int = 0, placed: bool = True) -> bytes:
    """Make a National Water Model file of `reaches` river reaches, or of the 1 km grid if 0."""

    def write(file: h5py.File) -> None:
        _clock(file, [valid], EPOCH)
        _clock(file, [run], EPOCH, "reference_time", 1)
        if reaches:
            axis(file, "feature_id", np.arange(101, 101 + reaches, dtype="<i8"), 2, {"long_name": "Reach ID"})
            places = {"latitude": np.linspace(29.4, 30.3, reaches), "longitude": np.linspace(-97.8, -97.6, reaches)}
            for name, values in places.items() if placed else ():
                described = _LAT if name == "latitude" else _LON
                variable(file, name, values.astype("<f4"), dimensions=["feature_id"], **described)
            _fields(file, fields, ["feature_id"], units="m3 s-1")
            return
        for number, (name, centres) in enumerate(
            (("x", -2303499.18 + 1e3 * np.arange(4608)), ("y", -1919500.34 + 1e3 * np.arange(3840))), start=2
        ):
            axis(file, name, centres, number, {"standard_name": f"projection_{name}_coordinate", "units": "m"})
        mapping: dict[str, Any] = {"grid_mapping_name": "lambert_conformal_conic", "spatial_ref": _SPHERE}
        variable(file, "crs", np.bytes_(b"x"), **mapping)
        _fields(file, fields, ["time", "y", "x"], units="K", grid_mapping="crs")

    attributes = {"model_initialization_time": f"{run:%Y-%m-%d_%H:%M:%S}", "Conventions": "CF-1.6"}
    return _written(attributes, write)


def nwm_retrospective_samples(day: date, count: int) -> Iterator[Sample]:
    """Yield the first `count` of four files of noon: two of version 3.0, then two of 2.1."""
    noon = datetime.combine(day, time(12), UTC)
    run, rivers, weather = noon.replace(day=1, hour=0), ("streamflow", "velocity"), ("T2D", "RAINRATE")
    new, old = "noaa-nwm-retrospective-3-0-pds", "noaa-nwm-retrospective-2-1-pds"
    stamp = f"{noon:%Y/%Y%m%d%H}"
    yield from (
        (new, f"CONUS/netcdf/CHRTOUT/{stamp}00.CHRTOUT_DOMAIN1", _water(noon, run, rivers, reaches=500)),
        (new, f"CONUS/netcdf/FORCING/{stamp}00.LDASIN_DOMAIN1", _water(noon, run, weather)),
        (old, f"model_output/{stamp}00.CHRTOUT_DOMAIN1.comp", _water(noon, run, rivers, reaches=200)),
        (old, f"forcing/{stamp}.LDASIN_DOMAIN1", _water(noon, run, weather)),
    )[:count]


def nwm_samples(day: date, count: int) -> Iterator[Sample]:
    """Yield the first files of noon's short-range forecast; files of channels have no positions."""
    run = datetime.combine(day, time(12), UTC)
    for lead, product in ((1, "channel_rt"), (2, "channel_rt"), (1, "land"), (1, "forcing"))[:count]:
        folder = f"{'forcing_' if product == 'forcing' else ''}short_range"
        fields, reaches = (("streamflow",), 500) if product == "channel_rt" else (("SNOWH", "ACCET"), 0)
        content = _water(run + timedelta(hours=lead), run, fields, reaches=reaches, placed=False)
        key = f"nwm.{run:%Y%m%d}/{folder}/nwm.t{run:%H}z.short_range.{product}.f{lead:03}.conus.nc"
        yield "noaa-nwm-pds", key, content


def _ocean(
    valid: datetime, longitudes: Any, latitudes: Any, names: tuple[str, ...], places: tuple[str, str], *, clock: str
) -> bytes:
    """Make an ocean model's file with dimensions `names` and variables of positions `places`."""

    def write(file: h5py.File) -> None:
        _clock(file, [valid], datetime(2016, 1, 1, tzinfo=UTC), clock)
        for number, (name, length) in enumerate(zip(names, np.shape(longitudes), strict=True), start=1):
            dimension(file, name, length, number)
        for name, values, described in zip(places, (longitudes, latitudes), (_LON, _LAT), strict=True):
            variable(file, name, np.asarray(values, "<f4"), dimensions=names, **described)
        _fields(file, ["zeta", "temp"], [clock, *names], coordinates=" ".join(places))

    return _written({"title": "sample of an ocean forecast"}, write)


def ofs_samples(day: date, count: int) -> Iterator[Sample]:
    """Yield the first files of noon: a ROMS grid, an FVCOM mesh, stations, a regular grid."""
    run = datetime.combine(day, time(12), UTC)
    valid, angle = run + timedelta(hours=1), np.radians(20)
    east, north = np.meshgrid(np.arange(60) * 0.02, np.arange(90) * 0.02)
    turned = -76.9 + east * np.cos(angle) - north * np.sin(angle), 36.5 + east * np.sin(angle) + north * np.cos(angle)
    nodes = np.linspace(0, 40, 3000)
    mesh = -93 + 4 * np.cos(nodes), 28.5 + nodes / 40 * np.sin(nodes)
    grid: Any = {"names": ("eta_rho", "xi_rho"), "places": ("lon_rho", "lat_rho"), "clock": "ocean_time"}
    stations: Any = {"names": ("station",), "places": ("lon_rho", "lat_rho"), "clock": "ocean_time"}
    files = (
        ("cbofs", "fields.f001", _ocean(valid, *turned, **grid)),
        ("ngofs2", "fields.f001", _ocean(valid, *mesh, ("node",), ("lon", "lat"), clock="time")),
        ("cbofs", "stations.nowcast", _ocean(run, turned[0][0], turned[1][0], **stations)),
        ("cbofs", "regulargrid.f001", _ocean(valid, *turned, ("ny", "nx"), ("Longitude", "Latitude"), clock="time")),
    )
    for model, name, content in files[:count]:
        yield "noaa-nos-ofs-pds", f"{model}/netcdf/{run:%Y/%m/%d}/{model}.t{run:%H}z.{run:%Y%m%d}.{name}.nc", content


def rtofs_samples(day: date, count: int) -> Iterator[Sample]:
    """Yield a run's first files; positions are fill values, as they are too many for the reader."""
    run = datetime.combine(day, time(), UTC)

    def content(valid: datetime, fields: Sequence[str]) -> bytes:
        def write(file: h5py.File) -> None:
            _clock(file, [valid], datetime(1900, 12, 31, tzinfo=UTC), "MT")
            axis(file, "Y", np.arange(1, 3299, dtype="<i4"), 1, {"axis": "Y"})
            axis(file, "X", np.arange(1, 4501, dtype="<i4"), 2, {"axis": "X"})
            for name, described in (("Latitude", _LAT), ("Longitude", _LON)):
                _fields(file, [name], ["Y", "X"], **described)
            _fields(file, fields, ["MT", "Y", "X"], coordinates="Longitude Latitude")

        return _written(
            {"title": "HYCOM ATLb2.00", "institution": "National Centers for Environmental Prediction"}, write
        )

    leads = {"2ds_f024_diag": 24, "2ds_f024_prog": 24, "2ds_n024_ice": 0, "3dz_f048_daily_3ztio": 48}
    for name, lead in list(leads.items())[:count]:
        encoded = content(run + timedelta(hours=lead), ["ssh", "sst"])
        yield "noaa-nws-rtofs-pds", f"rtofs.{run:%Y%m%d}/rtofs_glo_{name}.nc", encoded
