"""Atomic files: each file of an export appears whole, and replaces only an earlier export's.

A reader sees either the old or the new file. Does not belong here: the content of the files, or the catalog's files,
which several processes write at the same time (`storage/publisher.py`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from kfm_dagster.errors import ConfigurationError, ExitCode, KfmError
from kfm_dagster.storage.publisher import synced


class ForeignFileError(KfmError):
    """The path is taken by a file that no export wrote."""

    exit_code = ExitCode.REFUSED


@contextmanager
def atomic_files(folder: Path, openings: Mapping[str, bytes], *, option: str = "--out") -> Iterator[list[BinaryIO]]:
    """Open a folder's files for writing, and put them in place if the block succeeds.

    `openings` has the beginning of each file by name, by which the next export recognises the file. `option` is the
    command-line option that names the place.
    Raises ForeignFileError before anything is written, ConfigurationError when the folder cannot be written to.
    """
    try:
        for name, opening in openings.items():
            _refuse_foreign(folder / name, opening, option)
        folder.mkdir(parents=True, exist_ok=True)
        parts = {name: folder / f".{name}.{secrets.token_hex(4)}" for name in openings}
        with ExitStack() as stack:
            opened: list[BinaryIO] = []
            for name, part in parts.items():
                opened.append(stack.enter_context(part.open("xb")))
                stack.callback(part.unlink, missing_ok=True)
                opened[-1].write(openings[name])
            yield opened
            for handle in opened:
                handle.flush()
                os.fsync(handle.fileno())
            for name, part in parts.items():
                part.replace(folder / name)
        synced(folder, os.fsync)
    except OSError as error:
        raise ConfigurationError(
            "the export cannot be written",
            observed=f"{folder}: {error.strerror or error}",
            next_step=f"name another folder with {option}",
        ) from error


def write_document(path: Path, text: str, *, opening: bytes, option: str = "--out") -> None:
    """Write a text, which begins with `opening`, like `atomic_files`."""
    with atomic_files(path.parent, {path.name: opening}, option=option) as [file]:
        file.write(text.encode().removeprefix(opening))


def _refuse_foreign(path: Path, opening: bytes, option: str) -> None:
    if (path.is_symlink() or path.exists()) and not begins_with(path, opening):
        raise ForeignFileError(
            observed=str(path),
            expected="a file of an earlier export, or no file",
            next_step=f"move it away, or name another folder with {option}",
        )


def begins_with(path: Path, opening: bytes) -> bool:
    """Return whether a path is a file (not a link) that begins with `opening`."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(opening)) == opening
