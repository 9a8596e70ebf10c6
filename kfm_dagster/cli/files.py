"""Check that a command's files and folders can be written, before the command begins."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import click

from kfm_dagster.errors import ConfigurationError


class NewFile(click.Path):
    """Path of a file to write in an existing folder; with `edited`, the file must not exist."""

    def __init__(self, *, edited: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)
        self._edited = edited

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a path whose folder is missing or takes no file, in addition to click's checks."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.absolute().parent.is_dir():
            self.fail(f"there is no folder {path.parent}", param, ctx)
        try:
            _try(path)
        except OSError as error:
            self.fail(f"{path} cannot be written ({error.strerror})", param, ctx)
        if self._edited and path.is_file():
            option = "" if param is None else f" with {param.opts[0]}"
            raise ConfigurationError(
                "the file is there already, and may have been edited",
                observed=path,
                expected="a new file",
                next_step=f"move it away, or name another file{option}",
            )
        return path


def refuse_unwritable_home(home: Path) -> None:
    """Raise ConfigurationError if a data root cannot be created or written; leaves no file."""
    refuse_unwritable(home, "the data root", "name another with KFM_HOME, or with --home if the command has it")


def refuse_unwritable(place: Path, name: str, next_step: str) -> None:
    """Raise ConfigurationError if a folder cannot be created or written; leaves no file."""
    try:
        existing = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise ConfigurationError(
            f"{name} cannot be written to",
            observed=f"{place}: {error.strerror}",
            expected="a writable folder, or a path where it can be created",
            next_step=next_step,
        ) from None


def _try(path: Path) -> None:
    """Raise OSError if a file cannot be opened to write, although permissions allow it (/proc)."""
    if path.is_file():
        path.open("ab").close()
    elif not path.exists():
        tempfile.TemporaryFile(dir=path.parent).close()
