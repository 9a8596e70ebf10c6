"""Open the object of an Item, or the bytes of one of its fields, as xarray.

Each object is read in the version that its Item describes. An object that was written again raises ObjectReadError.
Belongs here: which client opens which format. Does not belong here: which Item is the newest (`items.py`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from kfm_dagster.catalog.assets import DATA_ASSET
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.errors import ConfigurationError, KfmError, UnknownNameError
from kfm_dagster.readers.base import BLOCK_BYTES
from kfm_dagster.readers.ranges import BlockCache
from kfm_dagster.readers.unpacked import gunzipped
from kfm_dagster.reading.items import (
    Bbox,
    CatalogFiles,
    Time,
    equal,
    latest,
    newness,
    read_item,
    time_range,
    valid_time,
)
from kfm_dagster.reading.names import REFERENCE, Item, layer, layers_of, matches, only, variables_of
from kfm_dagster.reading.packages import package
from kfm_dagster.reading.stores import is_store, open_store
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.object_handle import ObjectReadError, RemoteObject
from kfm_dagster.storage.objects import s3_bucket
from kfm_dagster.storage.publisher import Ranges

if TYPE_CHECKING:
    import pystac

Source: TypeAlias = "str | pystac.Item | Item | Sequence[str | pystac.Item]"
PARALLEL = 8
"""Number of fields (`best`) or of chunks of a radar volume that are read in parallel."""
MD5 = "d50110"
"""Multihash prefix of an MD5 digest (table of multiformats). Items have an ETag in this form if it is an MD5 digest."""
PARQUET = "application/vnd.apache.parquet"
TIMES = {"valid_time": "GRIB_VALID_TIME", "reference_time": "GRIB_REF_TIME"}
"""Coordinates of a field, and GDAL's tags that have them in seconds since 1970."""
UNPLACED = 32769
"""GRIB2 grid template whose values GDAL reads without coordinates; the coordinates are computed from the Item."""
MAX_UNPACKED_BYTES = 256 * 1024 * 1024
"""Maximum unpacked bytes of a gzipped object; real objects have at most 72 MiB (`readers/isd.py`)."""
_CHUNK = re.compile(r"\d{3}-[SIE]$")


class UnreadableObjectError(KfmError):
    """The client of the format cannot read the object."""


def open_source(
    source: Source,
    *,
    field: str | None = None,
    level: str | None = None,
    catalog: str | None = None,
    **properties: object,
) -> Any:
    """Open an Item or one of its fields; a dataset's id opens the dataset's newest Item.

    `source` is an Item, the address of its file, or a dataset's id. An id opens the dataset's `latest` Item with the
    field and the properties. `source` may also be a virtual store, or several as one array (`stores`). `field` names
    a NetCDF variable, or a GRIB2 field as in its index: `TMP:2 m above ground`, or `TMP` with `level`. Returns a
    DataArray for a field, else a Dataset. A radar volume is xradar's DataTree with a group for each sweep; station
    reports are a pandas DataFrame.

    Raises UnknownNameError if no field or several fields have the name, ObjectReadError if the object is gone or was
    written again after its Item, UnreadableObjectError if the client fails, ConfigurationError for a format without a
    client, and DependencyUnavailableError if a package of the extra `read` is missing.
    """
    if isinstance(source, str):
        is_address = source.endswith(".json")
        source = (
            read_item(source) if is_address else latest(source, field=field, level=level, catalog=catalog, **properties)
        )
    if is_store(source):
        with _client("virtual stores"):
            store = open_store(source)
            return store if field is None else store[field]
    item: Any = source.to_dict(transform_hrefs=False) if hasattr(source, "to_dict") else source
    if not isinstance(item, Mapping) or DATA_ASSET not in item.get("assets", ()):
        raise ConfigurationError(
            "not an Item of this catalog",
            observed=type(source).__name__,
            expected=f"an Item with the asset `{DATA_ASSET}`, the address of its file, or a dataset",
        )
    asset = item["assets"][DATA_ASSET]
    with _client(asset["href"]):
        match asset.get("xarray:open_kwargs", {}).get("engine"):
            case "rasterio":
                return _grid(item, layer(item, field, level) if layers_of(item) else field)
            case "h5netcdf":
                dataset = package("xarray").open_dataset(_file(item), **asset["xarray:open_kwargs"])
                # A file has variables that its Item does not list, such as quality flags.
                names = [] if field is None else [name for name in dataset.data_vars if name == field]
                return dataset if field is None else dataset[only(item, field, names, list(dataset.data_vars))]
            case "nexradlevel2":
                return package("xradar").io.open_nexradlevel2_datatree(_volume(item))
        if any("isd:positions" in column for column in variables_of(item).values()):
            return _reports(item)
        if asset.get("type") == PARQUET or "ghcn:csv" in item["properties"]:
            return _rows(item)
    raise ConfigurationError(
        "no client of xarray for this format",
        observed=asset.get("title"),
        expected="GRIB2, NetCDF, a NEXRAD Level II volume or reports of stations",
        next_step=f"read {asset['href']} with a client of this format (docs/stac.md)",
    )


def best(
    dataset: str,
    field: str,
    *,
    level: str | None = None,
    time: Time | tuple[Time, Time] = None,
    bbox: Bbox | None = None,
    catalog: str | None = None,
    **properties: object,
) -> Any:
    """Return a field along `valid_time`; each valid time is from the newest run that has it.

    `time` bounds the valid times; by default they begin at the newest run. Returns a DataArray in memory whose
    coordinate `reference_time` has the run of each valid time. Items that are not on the grid of the newest Item, such
    as HRRR's Items of Alaska, are left out. Raises as `open` does.
    """
    start, end = time_range(time)
    if time is None:
        first = latest(dataset, field=field, level=level, catalog=catalog, **properties).properties
        start = datetime.fromisoformat(first.get(REFERENCE) or first.get("start_datetime") or first["datetime"])
    files, conditions = CatalogFiles(catalog), equal(properties)
    entries = files.items([dataset], start=start, end=end, bbox=bbox, conditions=conditions)
    # Newest first, so that the first Item of each valid time is the best.
    items = sorted(
        (item for _, item in entries if matches(item, field, level)),
        key=lambda item: newness(item, field, level),
        reverse=True,
    )
    if not items:
        raise UnknownNameError(f"no Item of {dataset} has the field at this time", observed=field)
    by_time: dict[datetime, Item] = {}
    for item in items:
        if _grid_of(item) == _grid_of(items[0]):
            by_time.setdefault(valid_time(item), item)
    newest = [by_time[valid] for valid in sorted(by_time)]
    with ThreadPoolExecutor(PARALLEL) as pool:
        fields = list(pool.map(partial(open_source, field=field, level=level), newest))
    runs = [name for name in ("reference_time",) if name in fields[0].coords]
    return package("xarray").concat(
        fields, "valid_time", coords=runs, compat="override", combine_attrs="drop_conflicts"
    )


def _grid_of(item: Item) -> tuple[object, ...]:
    """Return the shape, transform and projection of an Item's grid (STAC projection extension)."""
    return tuple(item["properties"].get(f"proj:{name}") for name in ("shape", "transform", "wkt2"))


def _object(item: Item, asset: str = DATA_ASSET) -> RemoteObject:
    """Return an asset's object in the Item's version, without a request if its ETag is known."""
    described = item["assets"][asset]
    scheme, _, place = unquote(described["href"]).partition("://")
    bucket, _, key = place.partition("/")
    if scheme != "s3" or not key:
        raise ConfigurationError("not an object of S3", observed=described["href"], expected="s3://bucket/key")
    size, checksum = described.get("file:size"), described.get("file:checksum", "")
    etag = checksum.removeprefix(MD5) if checksum.startswith(MD5) else None
    schemes = item["properties"].get("storage:schemes", {})
    region = next((scheme["region"] for scheme in schemes.values() if "region" in scheme), "us-east-1")
    anonymous = bool(described.get("xarray:storage_options", {}).get("anon"))
    store = s3_bucket(bucket, region=region, anonymous=anonymous)
    handle = RemoteObject(store, uri=described["href"], key=key, size=size if etag else None, etag=etag)
    if etag is None and size is not None and handle.size != size:
        raise _rewritten(handle.uri)
    return handle


def _rewritten(uri: str) -> ObjectReadError:
    """Return the error for an object that was written again after its Item."""
    return ObjectReadError(
        IntegrityIssue.STORAGE_UNAVAILABLE,
        uri,
        "the object was written again after its Item",
        next_step="search again for the Item of the new object",
    )


def _content(item: Item) -> bytes:
    """Return the whole object, decompressed if it is gzipped."""
    handle = _object(item)
    packed = item["assets"][DATA_ASSET].get("type") == "application/gzip"
    source = gunzipped(handle, limit=MAX_UNPACKED_BYTES) if packed else handle
    return source.read(0, source.size)


def _file(item: Item) -> io.RawIOBase:
    """Return the object as a file that fetches each block once, when it is read."""
    handle = _object(item)
    blocks = BlockCache(handle, max_blocks=handle.size // BLOCK_BYTES + 1)
    return Ranges(lambda start, end: blocks.read(start, end - start), handle.size)


def _grid(item: Item, name: str | None) -> Any:
    """Read a GRIB2 field with GDAL, on the grid's coordinates; `name` None: the only field."""
    rasterio, rioxarray = package("rasterio"), package("rioxarray")
    part = layers_of(item).get(name or "")
    content = _object(item).read(part["start_byte"], part["byte_size"]) if part else _content(item)
    if part and not (content.startswith(b"GRIB") and content.endswith(b"7777")):
        raise _rewritten(item["assets"][DATA_ASSET]["href"])
    variable = None if name is None else name.split(maxsplit=1)[0] if part else name
    # GDAL would convert kelvins to degrees Celsius, unlike the units of the Item.
    with rasterio.Env(GRIB_NORMALIZE_UNITS="NO"), rasterio.MemoryFile(content) as file, file.open() as bands:
        elements = {number: bands.tags(number)["GRIB_ELEMENT"] for number in bands.indexes}
        numbers = [number for number in elements if variable in {None, elements[number]}]
        if part and not numbers:
            # The byte range selects the field. GDAL names some fields otherwise, e.g. accumulations with their hours.
            numbers = list(elements)
        # U and V of a wind share a GRIB2 message. Without an index, the names are GDAL's names, which have no levels.
        only(item, name, [elements[number] for number in numbers], sorted(set(elements.values())))
        tags = bands.tags(numbers[0])
        grid = rioxarray.open_rasterio(bands, masked=True).sel(band=numbers[0], drop=True).load()
    numpy, properties = package("numpy"), item["properties"]
    parallels = properties.get("grib:gaussian-parallels")
    if parallels is not None and grid.sizes["y"] == 2 * parallels:
        # GDAL spaces the rows evenly. The sines of a Gaussian grid's latitudes are the roots of a Legendre polynomial.
        sines, _ = package("scipy.special").roots_legendre(grid.sizes["y"])
        grid = grid.assign_coords(y=numpy.degrees(numpy.arcsin(sines))[::-1])
    if properties.get("grib:grid-template") == UNPLACED:
        width, _, west, _, height, north = properties["proj:transform"]
        x, y = west + width * (numpy.arange(grid.x.size) + 0.5), north + height * (numpy.arange(grid.y.size) + 0.5)
        # RAP's rows begin in the south, so their order is reversed.
        grid = grid[::-1].assign_coords(x=x, y=y).rio.write_crs(properties["proj:wkt2"]).rio.write_transform()
    variable = variable or elements[numbers[0]]
    description = variables_of(item).get(variable, {})
    attributes = {"units": description.get("unit"), "long_name": description.get("description")}
    # Times are read from the GRIB2 message, because an Item with several GRIB2 messages has at most one time.
    times = {name: tags.get(tag) for name, tag in TIMES.items()}
    return (
        grid.rename(variable)
        .assign_coords({name: numpy.datetime64(int(time.split()[0]), "s") for name, time in times.items() if time})
        .assign_attrs({name: value for name, value in attributes.items() if value})
    )


def _volume(item: Item) -> bytes:
    """Return a radar volume; if the Item's object is a chunk, join it to all earlier chunks."""
    chunks = item["properties"].get("nexrad:chunks")
    href = item["assets"][DATA_ASSET]["href"]
    newest = _content(item)
    if chunks is None or not _CHUNK.search(href):
        return newest
    keys = [_CHUNK.sub("001-S" if number == 1 else f"{number:03}-I", href) for number in range(1, chunks)]
    asset = {name: value for name, value in item["assets"][DATA_ASSET].items() if not name.startswith("file:")}
    earlier = [{**item, "assets": {DATA_ASSET: {**asset, "href": key}}} for key in keys]
    with ThreadPoolExecutor(PARALLEL) as pool:
        return b"".join((*pool.map(_content, earlier), newest))


def _reports(item: Item) -> Any:
    """Return the reports of stations, missing values as NaN, in the units of the Item."""
    pandas, columns = package("pandas"), variables_of(item)
    spans = {"time": (15, 27)} | {
        name: (column["isd:positions"][0] - 1, column["isd:positions"][1]) for name, column in columns.items()
    }
    reports = pandas.read_fwf(io.BytesIO(_content(item)), colspecs=list(spans.values()), names=list(spans), dtype=str)
    for name, column in columns.items():
        known = reports[name].where(reports[name] != column["isd:missing"])
        reports[name] = known.astype(float) * column["isd:scale"]
    reports["time"] = pandas.to_datetime(reports["time"], format="%Y%m%d%H%M", utc=True)
    return reports


def _rows(item: Item) -> Any:
    """Return rows with `time`; rows of GHCN-Daily also have `value`, in the element's unit."""
    pandas, properties, content = package("pandas"), item["properties"], io.BytesIO(_content(item))
    if dialect := properties.get("ghcn:csv"):
        names = {} if dialect["header"] else {"names": properties["ghcn:columns"]}
        # Only one character, because pandas takes a longer delimiter as a regular expression.
        rows = pandas.read_csv(content, sep=dialect["delimiter"][:1], dtype={"DATE": str}, low_memory=False, **names)
    else:
        rows = pandas.read_parquet(content)
    if "DATA_VALUE" in rows:
        scales = {name: variable["ghcn:scale"] for name, variable in variables_of(item).items()}
        if "ELEMENT" not in rows:  # an object of one element, which its Item names
            rows["ELEMENT"] = next(iter(scales))
        rows["value"] = rows["DATA_VALUE"] * rows["ELEMENT"].map(scales)
    moments = rows["DATE"] if "DATE" in rows else rows[["Year", "Month", "Day", "Hour", "Minute"]]
    rows["time"] = pandas.to_datetime(moments, utc=True, errors="coerce")
    return rows


@contextmanager
def _client(href: str) -> Iterator[None]:
    """Raise UnreadableObjectError for the many errors that clients raise for broken objects."""
    try:
        yield
    except ObjectReadError as error:
        # Raised again here, without the many frames of the client.
        next_step = error.next_step or "check AWS_ENDPOINT_URL; for a demo's objects: kfm ui, and . .kfm/samples.env"
        raise ObjectReadError(error.code, href, str(error.observed), next_step=next_step) from None
    except KfmError:
        raise
    except Exception as error:
        raise UnreadableObjectError(
            observed=f"{href}: {error_text(error)}",
            next_step="read the object with another client",
        ) from error
