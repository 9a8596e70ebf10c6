"""Cube steps of objects equal what libhdf5 and ecCodes read; objects that no store can reference are refused."""

from __future__ import annotations

import io
import struct
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import gribberish
import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.demo.samples.grib2_messages import at_hour
from kfm_dagster.followers.virtual import netcdf_step
from kfm_dagster.followers.virtual.grib2_step import read_grib2_step
from kfm_dagster.followers.virtual.netcdf_step import CubeStep, read_cube_step
from kfm_dagster.readers import hdf5_chunks
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5 import read_hdf5
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.followers.virtual.forecasts import (
    COLUMNS,
    PNG,
    ROWS,
    SIMPLE,
    SPATIAL,
    Values,
    decoded,
    field_of,
    in_groups,
    messages_of,
    values_of,
)
from kfm_dagster_tests.followers.virtual.granules import netcdf_of
from kfm_dagster_tests.readers.reading import attribute, rewritten

TYPES = ("<i1", "<u2", "<i4", ">i2", "<f4", ">f8")


def file_of(**images: dict[str, Any]) -> bytes:
    """Return a file with a scalar `t` and images; each has `data` and storage options."""

    def write(file: netCDF4.Dataset) -> None:
        file.createVariable("t", "f8", ())[:] = 5.0
        for name, image in images.items():
            data = image.pop("data")
            for axis, length in zip("yx", data.shape, strict=True):
                if axis not in file.dimensions:
                    file.createDimension(axis, length)
            variable = file.createVariable(name, data.dtype, ("y", "x"), **image)
            variable.set_auto_maskandscale(False)
            variable[:] = data

    return netcdf_of(write)


def step_of(content: bytes) -> CubeStep:
    return read_cube_step(BytesSource(content), along="t")


@settings(max_examples=120, deadline=None)
@given(
    shape=st.lists(st.integers(1, 40), min_size=0, max_size=3).map(tuple),
    chunk=st.lists(st.integers(1, 40), min_size=3, max_size=3),
    kind=st.sampled_from(TYPES),
    chunked=st.booleans(),
    shuffle=st.booleans(),
    deflate=st.none() | st.integers(0, 9),
    fletcher32=st.booleans(),
    written=st.floats(0, 1),
    fill=st.none() | st.integers(0, 100),
    seed=st.integers(0, 9),
)
def test_chunk_locations_equal_those_of_libhdf5(
    shape: tuple[int, ...],
    chunk: list[int],
    kind: str,
    chunked: bool,
    shuffle: bool,
    deflate: int | None,
    fletcher32: bool,
    written: float,
    fill: int | None,
    seed: int,
) -> None:
    how: dict[str, Any] = {}
    if chunked and shape:
        extents = tuple(min(*pair) for pair in zip(chunk, shape, strict=False))
        how = {"chunks": extents, "shuffle": shuffle, "compression": deflate, "fletcher32": fletcher32}
    with tempfile.NamedTemporaryFile(suffix=".h5") as named, h5py.File(named.name, "w", libver="earliest") as file:
        dataset = file.create_dataset("v", shape, kind, fillvalue=fill, **how)
        values = np.random.default_rng(seed).integers(0, 99, shape).astype(kind)
        if shape:
            rows = int(shape[0] * written)
            dataset[:rows] = values[:rows]
        elif written > 0.5:
            dataset[()] = values
        file.close()
        content = named.read()
    with h5py.File(io.BytesIO(content)) as file:
        expected, whole = file["v"], np.asarray(file["v"])
        locations = []
        if expected.chunks:
            for number in range(expected.id.get_num_chunks()):
                info = expected.id.get_chunk_info(number)
                place = tuple(at // extent for at, extent in zip(info.chunk_offset, expected.chunks, strict=True))
                locations.append((place, info.byte_offset, info.size))
        elif expected.id.get_offset() is not None:
            locations.append(((0,) * len(shape), expected.id.get_offset(), whole.nbytes))

    def look(root: Any) -> tuple[list[Any], bytes | None]:
        stored = root.dataset("v").storage
        return list(stored.chunks()), stored.values() if len(shape) < 2 else None

    dataset, read = read_hdf5(BytesSource(content), look)
    assert dataset == sorted(locations)
    assert read is None or read == whole.tobytes()


def with_parts(file: netCDF4.Dataset) -> None:
    for name, length in (("y", 4), ("x", 6), ("star", 64), ("line", 65)):
        file.createDimension(name, length)
    for name, dimensions in {
        "t": (), "x": ("x",), "y": ("y",), "stars": ("star",), "lines": ("line",), "Rad": ("y", "x"), "grid": (),
        "flag": (),
    }.items():  # fmt: skip
        file.createVariable(name, "f8", dimensions)[:] = 1
    file.createVariable("words", str, ())[...] = "no number"
    file["grid"].setncatts({"grid_mapping_name": "geostationary", "sweep_angle_axis": "x"})
    file["flag"].setncatts({"units": "1", "written_by": "one granule", "valid_max": np.nan})
    file.setncatts({"title": "a title", "date_created": "today"})


def test_a_step_has_images_and_small_auxiliary_variables() -> None:
    step = step_of(netcdf_of(with_parts))
    assert step.images.keys() == {"Rad"}
    assert step.fixed.keys() == {"x", "y", "grid"}
    # Stores omit auxiliary variables of more than 64 values, and texts.
    assert step.values.keys() == {"t", "stars", "flag"}
    assert step.attributes == {"title": "a title"}
    assert step.variables["grid"].attributes == {"grid_mapping_name": "geostationary", "sweep_angle_axis": "x"}
    assert step.variables["flag"].attributes == {"units": "1"}


IMAGE = np.arange(24, dtype="i2").reshape(4, 6)


def unwritten() -> bytes:
    """Return a file with only the first of two chunks written; HDF5 fills the other with 7."""

    def change(file: h5py.File) -> None:
        fill = file["v"].attrs["_FillValue"]
        del file["v"]
        part = file.create_dataset("v", (4, 6), "i2", chunks=(2, 6), fillvalue=7)
        part[:2] = IMAGE[:2]
        part.attrs["_FillValue"] = fill
        scaled(file, part)

    return rewritten(file_of(v={"data": IMAGE, "fill_value": 7, "chunksizes": (2, 6)}), change)


def scaled(file: h5py.File, image: h5py.Dataset) -> None:
    """Attach the file's two axes to an image."""
    for dimension, name in zip(image.dims, "yx", strict=True):
        dimension.attach_scale(file[name])


def test_unwritten_chunks_have_the_fill_value_of_the_file_or_are_refused() -> None:
    stated = unwritten()
    assert [chunk.place for chunk in step_of(stated).images["v"]] == [(0, 0)]
    other = rewritten(stated, attribute("_FillValue", np.array([8], "i2"), "v"))
    for wrong in (stated.replace(b"_FillValue", b"_FillOther"), other):
        with pytest.raises(ReadError, match="unwritten chunks"):
            step_of(wrong)


def with_lzf() -> bytes:
    """Return a file whose image has a filter that only h5py has."""
    return rewritten(
        file_of(v={"data": IMAGE}),
        lambda file: scaled(file, file.create_dataset("other", (4, 6), "i2", data=IMAGE, compression="lzf")),
    )


def test_content_that_no_store_can_reference_is_refused() -> None:
    for content, along, why in (
        (with_lzf(), "t", "filters"),
        (file_of(), "t", "no image"),
        (file_of(v={"data": IMAGE}), "s", "scalar variable s does not exist"),
        (file_of(v={"data": IMAGE}), "v", "scalar variable v does not exist"),
    ):
        with pytest.raises(ReadError, match=why):
            read_cube_step(BytesSource(content), along=along)


def test_the_number_of_indexed_chunks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    content = file_of(v={"data": IMAGE, "chunksizes": (1, 1)}, w={"data": IMAGE, "chunksizes": (1, 1)})
    monkeypatch.setattr(hdf5_chunks, "MAX_CHUNKS", 24)
    monkeypatch.setattr(netcdf_step, "MAX_ALL_CHUNKS", 48)
    assert sum(map(len, step_of(content).images.values())) == 48
    for module, name, most in ((hdf5_chunks, "MAX_CHUNKS", 23), (netcdf_step, "MAX_ALL_CHUNKS", 47)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, most)
            with pytest.raises(ReadError) as refused:
                step_of(content)
        assert refused.value.code is MetadataIssue.RESOURCE_LIMIT


def with_key(position: int, field: int, value: int) -> bytes:
    """Return a file of two one-row chunks, with one number of a chunk's index entry overwritten."""
    content = bytearray(file_of(v={"data": IMAGE[:2], "chunksizes": (1, 6), "fill_value": 7}))
    node = content.index(b"TREE\x01")
    # A key (bytes stored, filters skipped, offsets in y, x and the element), then the address (III.A.1).
    entry = struct.Struct("<II3QQ")
    at = node + 24 + position * entry.size
    values = list(entry.unpack_from(content, at))
    values[field] = value
    entry.pack_into(content, at, *values)
    return bytes(content)


def test_an_invalid_chunk_index_is_refused() -> None:
    for which, field, value in (
        (1, 0, 11),  # not the size of six numbers
        (1, 0, 0),
        (1, 1, 1),  # a filter marked as skipped
        (1, 2, 0),  # the offset of the first chunk
        (1, 2, 2),  # beyond the image
        (1, 3, 3),  # off the chunk grid
        (1, 3, 6),
        (1, 4, 2),  # an offset inside an element
        (1, 5, 1 << 40),  # beyond the end of the object
    ):
        with pytest.raises(ReadError) as refused:
            step_of(with_key(which, field, value))
        assert refused.value.code is MetadataIssue.UNREADABLE_FORMAT
    assert [chunk.place for chunk in step_of(with_key(0, 1, 0)).images["v"]] == [(0, 0), (1, 0)]


NAME = "TMP 2 m above ground 3 hour fcst"
CALLED = "TMP_2_m_above_ground"


def gribberish_has(message_: bytes) -> Values | None:
    """Return a message's values decoded by gribberish, the codec with which stores are read, or None if it fails."""
    try:
        return np.asarray(gribberish.parse_grib_array(message_, 0)).reshape(decoded(message_).shape)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return None


def same(values: Values | None, expected: Values) -> bool:
    """Return whether values are equal up to the last bit of a 64-bit float."""
    return values is not None and np.allclose(values, expected, rtol=1e-14, atol=0.0, equal_nan=True)


def refused(message_: bytes) -> bool:
    try:
        step = read_grib2_step(BytesSource(message_), {NAME: (0, len(message_))}, fields=["TMP .*"], along="valid_time")
    except ReadError:
        return True
    assert [*step.images] == [CALLED]
    return False


def message_packed_as(packing: str, *, missing: bool = False) -> bytes:
    _, _, message_ = field_of("TMP", "2 m above ground", at_hour(3), values_of([1], missing=missing), packing=packing)
    return message_


def test_the_codec_decodes_referenced_messages_as_eccodes_does() -> None:
    for case in product((SPATIAL, SIMPLE, "grid_jpeg"), (False, True)):
        packing, missing = case
        message_ = message_packed_as(packing, missing=missing)
        assert not refused(message_), case
        expected = decoded(message_)
        assert np.isnan(expected).any() == missing, case
        assert same(gribberish_has(message_), expected), case
        # Rows keep the message's order, south first.
        assert not np.array_equal(expected, expected[::-1], equal_nan=True), case


def constant(value: float = 280.0) -> bytes:
    return field_of("TMP", "2 m above ground", at_hour(3), np.full((ROWS, COLUMNS), value))[2]


def test_messages_that_the_codec_decodes_wrongly_are_refused() -> None:
    for case, make in {
        "constant": constant,
        "missing among packed": lambda: in_groups(constant(), missing=1),
        "one width": lambda: in_groups(constant(), width_bits=0),
        "one length": lambda: in_groups(constant(), length_bits=0),
        "complex": lambda: message_packed_as("grid_complex"),
        "png": lambda: message_packed_as(PNG),
    }.items():
        message_ = make()
        assert refused(message_), case
        expected = decoded(message_)
        assert np.isfinite(expected).any(), case
        # If a release of the codec decodes the message correctly, remove the refusal.
        assert not same(gribberish_has(message_), expected), case


def test_the_codec_decodes_several_groups_and_a_constant_of_zero() -> None:
    for message_ in (in_groups(constant()), constant(0.0)):
        assert not refused(message_)
        assert same(gribberish_has(message_), decoded(message_))


REAL = {
    "hrrr.20201214/conus/hrrr.t00z.wrfsfcf12.grib2": [
        ("APCP surface 0-12 hour acc fcst", "APCP_surface_acc"),
        ("APCP surface 11-12 hour acc fcst", "APCP_surface_acc_1h"),
    ],
    "hrrr.20230722/conus/hrrr.t06z.wrfsfcf01.grib2": [("TMP surface 1 hour fcst", "TMP_surface")],
    "hrrr.20251203/conus/hrrr.t00z.wrfsfcf00.grib2": [("HPBL surface anl", "HPBL_surface")],
    "hrrr.20260301/conus/hrrr.t00z.wrfprsf00.grib2": [("MASSDEN 8 m above ground anl", "MASSDEN_8_m_above_ground")],
}


@pytest.mark.parametrize("path", REAL)
def test_the_codec_decodes_real_messages_as_eccodes_does(shared_data: Path, path: str) -> None:
    content = (shared_data / "objects" / "noaa-hrrr-bdp-pds" / path).read_bytes()
    messages = messages_of(content)
    layers = {
        name: (content.index(message_), len(message_)) for (name, _), message_ in zip(REAL[path], messages, strict=True)
    }
    step = read_grib2_step(BytesSource(content), layers, fields=[".*"], along="valid_time")
    assert not step.refused
    assert [*step.images] == [called for _, called in REAL[path]]
    for (chunk,), message_ in zip(step.images.values(), messages, strict=True):
        assert content[chunk.offset : chunk.offset + chunk.length] == message_
        assert same(gribberish_has(message_), decoded(message_))
