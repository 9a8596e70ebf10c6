"""References to versions of objects as a store of zarr-python.

Does not belong here: reading the references (`stores.py`).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from typing_extensions import override
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import MemoryStore, WrapperStore

from kfm_dagster.storage.object_handle import RemoteObject

_Buffers: TypeAlias = "list[Buffer | None]"
_INLINE = "base64:"


class ReferenceStore(WrapperStore[MemoryStore]):
    """Read-only store of zarr that reads each chunk from the indexed version of its object.

    The wrapped store has the references and lists their keys; this class reads the values.
    """

    def __init__(self, references: Mapping[str, Any], versions: Mapping[str, RemoteObject]) -> None:
        """Create the store without a request; `versions` are the objects by address."""
        super().__init__(MemoryStore(dict(references), read_only=True))
        self._references = references
        self._versions = versions

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

    # The method of the base class calls `get` of this class; the wrapper's own method would call the wrapped store.
    _get_many = Store._get_many  # noqa: SLF001
