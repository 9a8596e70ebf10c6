"""Extras: which one brings a package that a command imports and that is not installed."""

from __future__ import annotations

import re
from importlib import metadata

from packaging.requirements import Requirement

from kfm_dagster.errors import ConfigurationError

_EXTRA = re.compile(r"""extra == ['"]([\w-]+)['"]""")
_OF_DEVELOPERS = frozenset({"dev", "docs"})


class MissingExtraError(ConfigurationError):
    """The command needs an extra that is not installed."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the refusal that names the extra to install, or None where the module is of no extra."""
    module = (error.name or "").partition(".")[0]
    for line in metadata.requires("kfm-dagster") or ():
        requirement = Requirement(line)
        extra = _EXTRA.search(str(requirement.marker))
        if extra and extra[1] not in _OF_DEVELOPERS and requirement.name.replace("-", "_") == module:
            return MissingExtraError(
                observed=f"no package {requirement.name}", next_step=f"pip install 'kfm-dagster[{extra[1]}]'"
            )
    return None
