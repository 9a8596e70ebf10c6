"""The HDF5 header parser: names, numbers, texts, forged structures, endless indexes."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import h5py
import numpy as np
import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.hdf5 import Hdf5Dataset, Hdf5Group, read_hdf5
from kfm_dagster.readers.hdf5_chunks import MAX_OBJECT_BYTES, MAX_OBJECTS, GlobalHeap
from kfm_dagster.readers.hdf5_forms import CHECKSUM_BYTES, lookup3
from kfm_dagster.readers.hdf5_index import tree_1_children
from kfm_dagster.readers.hdf5_messages import FileBytes
from kfm_dagster.readers.ranges import BlockCache, BytesSource
from kfm_dagster_tests.readers.reading import code_of, patched


def dataset(root: Hdf5Group, name: str) -> Hdf5Dataset:
    variable = root.dataset(name)
    assert variable is not None, name
    return variable


@pytest.mark.parametrize("version", ["earliest", "v108", "v110", "latest"])
@pytest.mark.parametrize("count", [1, 8, 9, 60, 700])
def test_any_number_of_attributes_and_variables_is_read(version: str, count: int) -> None:
    """The counts lead to compact storage, one node, deep trees, and heaps of many blocks."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=version) as file:
        for number in range(count):
            file.attrs[f"attribute {number}"] = np.int32(number)
            file[f"variable {number}"] = np.int16(-number)

    def numbers_of(root: Hdf5Group) -> list[tuple[float | None, float | None]]:
        names = [(f"attribute {number}", f"variable {number}") for number in range(count)]
        return [(root.number(attribute), dataset(root, variable).storage.element(0)) for attribute, variable in names]

    assert read_hdf5(BytesSource(buffer.getvalue()), numbers_of) == [(number, -number) for number in range(count)]


@pytest.mark.parametrize("version", ["v108", "v110", "latest"])
def test_attributes_beside_one_that_is_larger_than_a_heap_s_block_are_read(version: str) -> None:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=version) as file:
        file.attrs["history"] = np.zeros(100_000, "i1")
        for number in range(60):
            file.attrs[f"attribute {number}"] = np.int32(number)

    def numbers_of(root: Hdf5Group) -> list[float | None]:
        return [root.number(f"attribute {number}") for number in range(60)]

    assert read_hdf5(BytesSource(buffer.getvalue()), numbers_of) == list(range(60))


def test_a_text_without_a_value_is_empty() -> None:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["values"] = np.int8(0)
        file.attrs["units"] = h5py.Empty("S1")
    assert read_hdf5(BytesSource(buffer.getvalue()), lambda root: (root.text("units"), root.text("other"))) == (
        "",
        None,
    )


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i2", "<u4", ">i8", "<f4", ">f4", "<f8", ">f8"])
def test_every_kind_of_number_is_read_exactly(dtype: str) -> None:
    buffer = io.BytesIO()
    values = np.array([np.iinfo(dtype).min, 1, np.iinfo(dtype).max] if "f" not in dtype else [-1.5, 0, 2**70], dtype)
    with h5py.File(buffer, "w") as file:
        file["values"] = values
        file["values"].attrs["one"] = values[2]

    def numbers(root: Hdf5Group) -> list[float | None]:
        variable = dataset(root, "values")
        return [*map(variable.storage.element, range(3)), variable.number("one")]

    assert read_hdf5(BytesSource(buffer.getvalue()), numbers) == [*map(float, values), float(values[2])]


def heap_of(file: bytes) -> GlobalHeap:
    return GlobalHeap(FileBytes(BlockCache(BytesSource(file))))


def collection(*lengths: int, size: int | None = None) -> bytes:
    """Return a global heap's collection at address 0, whose objects have the indexes 1, 2, and so on."""
    objects = b"".join(
        struct.pack("<HH4xQ", index, 1, length) + bytes(min(length, 64) + 7 & ~7)
        for index, length in enumerate(lengths, start=1)
    )
    return struct.pack("<4sB3xQ", b"GCOL", 1, 16 + len(objects) if size is None else size) + objects


@pytest.mark.clause("OPR-07")
def test_an_inconsistent_global_heap_is_refused() -> None:
    for case, (file, index, code) in {
        "no such object": (collection(8), 2, MetadataIssue.UNREADABLE_FORMAT),
        "huge collection": (collection(8, size=1 << 40), 1, MetadataIssue.RESOURCE_LIMIT),
        "past the end": (collection(8, size=4096), 1, MetadataIssue.UNREADABLE_FORMAT),
        "object past its heap": (collection(1 << 40), 1, MetadataIssue.UNREADABLE_FORMAT),
        "huge object": (
            collection(MAX_OBJECT_BYTES + 8, size=1 << 17) + bytes(1 << 17),
            1,
            MetadataIssue.RESOURCE_LIMIT,
        ),
        "object past the end": (collection(60_000), 1, MetadataIssue.UNREADABLE_FORMAT),
        "no heap": (b"gcol" + collection(8)[4:], 1, MetadataIssue.UNREADABLE_FORMAT),
        "version": (b"GCOL\x02" + collection(8)[5:], 1, MetadataIssue.UNREADABLE_FORMAT),
    }.items():
        assert code_of(heap_of(file).read, 0, index, 8) is code, case


@pytest.mark.clause("OPR-07")
def test_reading_ends_although_global_heaps_overlap() -> None:
    step = 4096
    heap = heap_of(collection(*[0] * (step // 16 - 1)) * 2 * (MAX_OBJECTS * 16 // step))
    addresses = range(0, 2 * MAX_OBJECTS * 16, step)
    assert code_of(lambda: [heap.read(address, 1, 0) for address in addresses]) is MetadataIssue.RESOURCE_LIMIT


@pytest.mark.clause("OPR-07")
def test_walking_an_index_ends_although_nodes_are_repeated() -> None:
    def node(level: int, child: int, width: int) -> bytes:
        return struct.pack("<4sBBHQQ", b"TREE", 0, level, width, 0, 0) + struct.pack("<QQ", 0, child) * width + bytes(8)

    def refusal(nodes: bytes) -> MetadataIssue:
        file = FileBytes(BlockCache(BytesSource(nodes)))
        return code_of(list, tree_1_children(file, 0, kind=0, key_bytes=8))

    depth, size = 3, len(node(0, 0, 32))
    nodes = b"".join(node(depth - level, (level + 1) * size, 32) for level in range(depth + 1))
    assert refusal(nodes) is MetadataIssue.RESOURCE_LIMIT
    # A node that is its own child.
    assert refusal(node(255, 0, 1)) is MetadataIssue.UNREADABLE_FORMAT


def written(version: str, *, filled: bool) -> bytearray:
    """Return a file of a variable and an attribute; `filled` adds enough attributes for a heap.

    The version `ordered` tracks the order in which links and attributes are created.
    """
    buffer = io.BytesIO()
    ordered = version == "ordered"
    with h5py.File(buffer, "w", libver="v110" if ordered else version, track_order=ordered) as file:
        file.create_dataset("v", data=np.float32([1]))
        for number in range(60 if filled else 1):
            file.attrs[f"attribute {number}"] = np.int32(number)
    return bytearray(buffer.getvalue())


def sealed(content: bytearray, start: int, length: int) -> None:
    """Renew the checksum at the end of a structure."""
    end = start + length - CHECKSUM_BYTES
    content[end : end + CHECKSUM_BYTES] = lookup3(bytes(content[start:end])).to_bytes(CHECKSUM_BYTES, "little")


def header(content: bytearray, name: str) -> tuple[int, int]:
    """Return the offset of an object's header of version 2, and its length with the checksum."""
    with h5py.File(io.BytesIO(content), "r") as file:
        start = int(h5py.h5o.get_info(file[name].id).addr)
        space = h5py.h5o.get_info(file[name].id).hdr.space.total
    return start, int(space)


Change = Callable[[bytearray], None]


def one_message_fewer(content: bytearray) -> None:
    content[header(content, "v")[0] + 2] -= 1


def heap(place: int, layout: str) -> Change:
    """Set a number in a fractal heap's header to 8."""

    def change(content: bytearray) -> None:
        start = content.index(b"FRHP")
        struct.pack_into(layout, content, start + place, 8)
        sealed(content, start, 146)

    return change


def message(name: str, anchor: bytes, place: int, value: bytes) -> Change:
    """Write a value at an offset after `anchor` in an object's header."""

    def change(content: bytearray) -> None:
        start, length = header(content, name)
        at = content.index(anchor, start) + place
        content[at : at + len(value)] = value
        sealed(content, start, length)

    return change


def ordered(count: bytes, place: int, value: bytes) -> Change:
    """Write a value `place` bytes after version and flags of the root's information message.

    The count, and addresses of an index that does not exist, identify the message: of links, or of attributes.
    """
    return message("/", b"\0\3" + count + b"\xff" * 24, 2 + place, value)


INDEX, ONE_LINK, ONE_ATTRIBUTE = struct.pack("<Q", 48), struct.pack("<Q", 1), struct.pack("<H", 1)
FORGED: dict[str, tuple[str, bool, Change]] = {
    "more messages than the stated count": ("earliest", False, one_message_fewer),
    "a heap that is smaller than its offsets": ("latest", True, heap(46, "<Q")),
    "a heap with a maximum below its objects' size": ("latest", True, heap(10, "<I")),
    "a null variable with bytes": (
        "v110", False, message("v", bytes((2, 1, 1, 1)) + struct.pack("<Q", 1), 4, b"\0"),
    ),
    # The message of group information (0x0A) becomes a message of filters.
    "a group with invalid filters": ("v110", False, message("/", bytes((0x0A, 2, 0)), 0, b"\x0b")),
    "a negative maximum of the creation order": ("ordered", False, ordered(ONE_LINK, 0, struct.pack("<q", -129))),
    "links in the header and in an index": ("ordered", False, ordered(ONE_LINK, 8, INDEX)),
    "attributes in the header and in an index": ("ordered", False, ordered(ONE_ATTRIBUTE, 2, INDEX)),
}  # fmt: skip


@pytest.mark.clause("OPR-07")
@pytest.mark.parametrize("name", FORGED)
def test_a_form_that_libhdf5_refuses_is_refused(name: str) -> None:
    version, filled, change = FORGED[name]
    forged = written(version, filled=filled)
    change(forged)
    content = bytes(forged)

    def everything(root: Hdf5Group) -> object:
        return root.attributes(), [(variable.shape, variable.attributes()) for variable in root.datasets().values()]

    def everything_by_libhdf5() -> object:
        with h5py.File(io.BytesIO(content), "r") as file:
            return dict(file.attrs), [(file[name].shape, dict(file[name].attrs)) for name in file]

    with pytest.raises((OSError, RuntimeError, KeyError, OverflowError)):
        everything_by_libhdf5()
    with pytest.raises(ReadError, match="HDF5: "):
        read_hdf5(BytesSource(content), everything)


@pytest.mark.clause("OPR-07")
def test_a_superblock_that_netcdf_4_does_not_write_is_refused() -> None:
    content = written("earliest", filled=False)
    read_hdf5(BytesSource(bytes(content)), Hdf5Group.attributes)
    # Versions of parts, a reserved byte, flags, and the addresses of free space and of a driver.
    for at in (9, 10, 11, 12, 15, 20, 21, 22, 23, 32, 48):
        forged = content.copy()
        forged[at] ^= 1
        with pytest.raises(ReadError, match="writes no such superblock"):
            read_hdf5(BytesSource(bytes(forged)), Hdf5Group.attributes)


@pytest.mark.clause("OPR-07")
def test_filters_with_invalid_values_are_refused() -> None:
    """libhdf5 refuses the chunk, or reads other values because it undoes another shuffle."""
    for change in ((b"deflate\0", 10), (b"deflate\0", 0x202020), (b"shuffle\0", 0), (b"shuffle\0", 4)):
        buffer = io.BytesIO()
        with h5py.File(buffer, "w", libver="earliest") as file:
            file.create_dataset("v", data=range(1000), dtype="i2", chunks=(500,), compression=4, shuffle=True)
        whole = buffer.getvalue()
        assert read_hdf5(BytesSource(whole), _third_and_all)[0] == 3
        name, value = change
        at = whole.index(name) + len(name)
        forged = patched(whole, at, struct.pack("<I", value))
        try:
            with h5py.File(io.BytesIO(forged), "r") as file:
                assert file["v"][3] != 3
        except OSError:
            pass
        for query in (_third_and_all, lambda root: root.datasets()["v"].storage):
            with pytest.raises(ReadError, match=f"HDF5: {name[:-1].decode()} with"):
                read_hdf5(BytesSource(forged), query)


def _third_and_all(root: Hdf5Group) -> tuple[float | None, bytes]:
    variable = root.datasets()["v"]
    return variable.storage.element(3), variable.storage.values()
