"""References to versions of objects as a store of zarr-python.

Does not belong here: reading the references (`stores.py`).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, TypeAlias

from typing_extensions import override
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import MemoryStore

from kfm_dagster.storage.object_handle import RemoteObject

_Buffers: TypeAlias = "list[Buffer | None]"
_INLINE = "base64:"


class ReferenceStore(Store):
    """Read-only store of zarr: each chunk is read from the version of its object that was indexed."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, references: Mapping[str, Any], versions: Mapping[str, RemoteObject]) -> None:
        """Create the store without a request; `versions` are the objects by address."""
        super().__init__(read_only=True)
        self._references = references
        self._versions = versions

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReferenceStore) and self._references == other._references

    __hash__ = None  # type: ignore[assignment]

    @override
    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        match self._references.get(key):
            case None:
                return None
            case [uri, start, length]:
                content = await asyncio.to_thread(self._versions[uri].read, start, length)
            case text:
                inline = text.startswith(_INLINE)
                content = base64.b64decode(text.removeprefix(_INLINE)) if inline else text.encode()
        whole = MemoryStore({key: prototype.buffer.from_bytes(content)})
        return await whole.get(key, prototype, byte_range)

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> _Buffers:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    @override
    async def exists(self, key: str) -> bool:
        return key in self._references

    @override
    async def set(self, key: str, value: Buffer) -> None:
        raise NotImplementedError

    @override
    async def delete(self, key: str) -> None:
        raise NotImplementedError

    @override
    async def list(self) -> AsyncIterator[str]:
        for key in self._references:
            yield key

    @override
    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._references:
            if key.startswith(prefix):
                yield key

    @override
    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        folder = f"{prefix.rstrip('/')}/".lstrip("/")
        for name in {key.removeprefix(folder).partition("/")[0] for key in self._references if key.startswith(folder)}:
            yield name
