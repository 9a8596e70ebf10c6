"""Folders and files that nobody else on the machine may read: a data root holds messages, keys and whole ledgers.

Only what is made here is private. What stands already keeps the permissions that its owner gave it: a group may have
been let in on purpose, and `chmod` is that owner's to type.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def private_folder(folder: Path) -> None:
    """Make a folder, and the missing ones that it is in, for this user alone. Raises OSError where it cannot be."""
    for part in reversed([folder, *folder.parents]):
        if not part.exists():
            part.mkdir(mode=FOLDER_MODE, exist_ok=True)
    folder.mkdir(exist_ok=True)


def private_file(file: Path) -> None:
    """Make an empty file for this user alone unless one is there. Raises OSError where it cannot be."""
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
