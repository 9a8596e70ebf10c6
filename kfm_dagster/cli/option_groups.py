"""Options that several commands share, handed to each command as one value. Nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any


def option_group(
    command: Callable[..., Any],
    options: Sequence[Callable[[Any], Any]],
    name: str,
    value_of: Callable[..., Any],
) -> Callable[..., Any]:
    """Give a command options that it gets as one value, made by `value_of` of what they say."""

    def bare() -> None: ...

    for option in options:
        option(bare)
    names = [str(parameter.name) for parameter in getattr(bare, "__click_params__", ())]

    @functools.wraps(command)
    def grouped(**arguments: Any) -> Any:
        given = {each: arguments.pop(each) for each in names}
        return command(**{name: value_of(**given)}, **arguments)

    for option in reversed(options):
        option(grouped)
    return grouped
