"""The HDF5 header parser: agreement with libhdf5 on real files, and indexes made to keep it busy."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5 import MAX_TEXT_BYTES, Hdf5Dataset, Hdf5Group, Hdf5Object, read_hdf5
from kfm_dagster.readers.hdf5_index import name_hash, tree_1_children
from kfm_dagster.readers.hdf5_messages import FileBytes
from kfm_dagster.readers.ranges import BlockCache, BytesSource


def dataset(root: Hdf5Group, name: str) -> Hdf5Dataset:
    found = root.dataset(name)
    assert found is not None, name
    return found


def compare_attributes(found: Hdf5Object, expected: h5py.AttributeManager) -> int:
    """Hold every single text and number against libhdf5's; return how many there were."""
    compared = 0
    for name, value in expected.items():
        if isinstance(value, np.bytes_) and len(value) <= MAX_TEXT_BYTES:
            assert found.text(name) == value.decode()
        elif isinstance(value, np.ndarray | np.generic) and value.size == 1 and value.dtype.kind in "iuf":
            np.testing.assert_equal(found.number(name), float(value.item()))
        else:
            continue
        compared += 1
    return compared


@pytest.mark.parametrize("product", ["ABI-*", "GLM-*"])
def test_every_attribute_and_scalar_of_real_files_equals_libhdf5_s(shared_data: Path, product: str) -> None:
    def compare(root: Hdf5Group, file: h5py.File) -> int:
        compared = compare_attributes(root, file.attrs)
        for name, expected in file.items():
            found = dataset(root, name)
            assert found.shape == expected.shape
            if expected.shape in {(), (1,), (2,)} and expected.id.get_offset() is not None:
                values = [found.element(index) for index in range(expected.size)]
                np.testing.assert_equal(values, np.ravel(expected[()]).astype(float).tolist())
            compared += compare_attributes(found, expected.attrs)
        assert root.dataset("no such variable") is None
        assert root.text("no such attribute") is None
        return compared

    paths = sorted((shared_data / "objects").glob(f"noaa-goes*/{product}/**/*.nc"))
    assert len(paths) >= 5
    for path in paths:
        content = path.read_bytes()
        with h5py.File(io.BytesIO(content)) as file:
            assert read_hdf5(BytesSource(content), lambda root, file=file: compare(root, file)) > 100, path


@pytest.mark.parametrize("version", ["earliest", "v108", "v110", "latest"])
@pytest.mark.parametrize("count", [1, 8, 9, 60, 700])
def test_any_number_of_names_is_found(version: str, count: int) -> None:
    """From compact storage over one node to trees of several levels and heaps of many blocks."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=version) as file:
        for number in range(count):
            file.attrs[f"attribute {number}"] = np.int32(number)
            file[f"variable {number}"] = np.int16(-number)

    def found(root: Hdf5Group) -> list[tuple[float | None, float | None]]:
        return [
            (root.number(f"attribute {number}"), dataset(root, f"variable {number}").element(0))
            for number in range(count)
        ]

    assert read_hdf5(BytesSource(buffer.getvalue()), found) == [(number, -number) for number in range(count)]


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i2", "<u4", ">i8", "<f4", ">f4", "<f8", ">f8"])
def test_every_kind_of_number_is_read_exactly(dtype: str) -> None:
    buffer = io.BytesIO()
    values = np.array([np.iinfo(dtype).min, 1, np.iinfo(dtype).max] if "f" not in dtype else [-1.5, 0, 2**70], dtype)
    with h5py.File(buffer, "w") as file:
        file["values"] = values
        file["values"].attrs["one"] = values[2]
    found = read_hdf5(
        BytesSource(buffer.getvalue()),
        lambda root: (
            [dataset(root, "values").element(index) for index in range(3)] + [dataset(root, "values").number("one")]
        ),
    )
    assert found == [*map(float, values), float(values[2])]


def test_names_hash_as_lookup3_does() -> None:
    # From the self-test of lookup3.c, driver5.
    assert name_hash(b"Four score and seven years ago") == 0x17770551
    assert name_hash(b"") == 0xDEADBEEF


@pytest.mark.clause("OPR-07")
def test_an_index_that_leads_to_the_same_node_over_and_over_comes_to_an_end() -> None:
    width = 4000

    def node(level: int, child: int) -> bytes:
        return struct.pack("<4sBBHQQ", b"TREE", 0, level, width, 0, 0) + struct.pack("<QQ", 0, child) * width

    size = len(node(0, 0))
    file = FileBytes(BlockCache(BytesSource(node(1, size) + node(0, 0))))
    with pytest.raises(ReadError) as refused:
        list(tree_1_children(file, 0, kind=0, key_bytes=8))
    assert refused.value.code is MetadataIssue.RESOURCE_LIMIT


@pytest.mark.clause("OPR-07")
def test_an_index_that_bites_its_tail_is_refused() -> None:
    node = struct.pack("<4sBBHQQQQ", b"TREE", 0, 255, 1, 0, 0, 0, 0)
    with pytest.raises(ReadError) as refused:
        list(tree_1_children(FileBytes(BlockCache(BytesSource(node))), 0, kind=0, key_bytes=8))
    assert refused.value.code is MetadataIssue.UNREADABLE_FORMAT
