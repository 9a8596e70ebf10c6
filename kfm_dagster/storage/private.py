"""Folders and files for this user alone, because data roots have messages, keys and ledgers.

Only folders and files that are created here become private. Existing ones keep their modes, because their owner may
have granted a group access on purpose.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def private_folder(folder: Path) -> None:
    """Create a folder and its missing parents for this user alone. Raises OSError on failure."""
    for part in reversed([folder, *folder.parents]):
        if not part.exists():
            part.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)


def private_file(file: Path) -> None:
    """Create an empty file for this user alone unless it exists. Raises OSError on failure."""
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
