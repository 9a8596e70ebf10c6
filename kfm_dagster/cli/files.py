"""Files that a command is to write: refused before anything is done where they cannot be. Nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class NewFile(click.Path):
    """Path of a file to write, in a folder that is there."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a folder that is not there, besides what click refuses."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.absolute().parent.is_dir():
            self.fail(f"there is no folder {path.parent}", param, ctx)
        return path
