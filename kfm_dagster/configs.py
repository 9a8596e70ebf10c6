"""Configuration files: read YAML into a model, or refuse it with file, line and reason.

Belongs here: how the files of `configs/`, contracts, and selections of replays are read. Does not belong here: their
content (`stages/card.py`, `contracts/model.py`), or the environment (`settings.py`).
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from kfm_dagster.documents import DocumentError, KeyPath, Model, checked, compose_yaml, line_of, read_yaml
from kfm_dagster.errors import ConfigurationError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST_DAYS = 3650
"""Limit of a duration: ten years. Without a limit, now plus a duration could leave the range of Python's dates."""


class CardError(ConfigurationError):
    """The pipeline card is wrong."""


class Strict(BaseModel):
    """An immutable section of a file; unknown keys are refused."""

    # `defer_build`: pydantic builds the validators of a kind of file when a process first reads a file of that kind.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def _duration(value: object) -> object:
    """Read a duration such as `10m` or `1.5h`. Raises ValueError for any other text or type."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _SECONDS[match[2]]
        if seconds > LONGEST_DAYS * _SECONDS["d"]:
            raise ValueError(f"no more than {LONGEST_DAYS}d")
        return timedelta(seconds=seconds)
    if isinstance(value, timedelta):
        return value
    raise ValueError("a number and one of ms, s, m, h, d, such as 10m")


def _compilable(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return pattern


Regex = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_compilable)]
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
"""Free text without control characters, because these break the lines of a log, and no database stores a NUL."""

Duration = Annotated[
    timedelta,
    BeforeValidator(_duration, json_schema_input_type=Annotated[str, Field(pattern=f"^{_DURATION.pattern}$")]),
    Field(ge=timedelta(0)),
]


def read_text(file: Path, *, error: type[ConfigurationError] = CardError) -> str:
    """Return a file's text. Raises `error`, with the file and its first line that is not UTF-8."""
    try:
        content = file.read_bytes()
    except OSError as caught:
        raise error(f"{file} cannot be read", observed=caught.strerror, next_step="give a readable file") from None
    try:
        return content.decode()
    except UnicodeDecodeError as caught:
        line = content.count(b"\n", 0, caught.start) + 1
        raise error(
            f"{file} line {line} is no UTF-8 text",
            observed=f"the byte 0x{content[caught.start]:02x}",
            next_step="save the file as UTF-8",
        ) from None


def text_in(folder: Path | None, name: str) -> tuple[str, str]:
    """Return text and path of a folder's file, or else of the release's file. Raises CardError."""
    path = (own_folder() if folder is None else folder) / name
    if not path.exists():
        path = own_folder() / name
    return read_text(path), str(path)


def parse(
    text: str,
    model: type[Model],
    *,
    source: str,
    error: type[ConfigurationError] = CardError,
    schema: str | None = None,
) -> Model:
    """Build a model from YAML. Raises `error` with source, line, wrong key, and path `schema`."""
    try:
        document: Any = read_yaml(text)
    except yaml.YAMLError as caught:
        mark = getattr(caught, "problem_mark", None)
        where = source if mark is None else f"{source} line {mark.line + 1}"
        observed = getattr(caught, "problem", None) or caught
        raise error(f"{where} is not valid YAML", observed=observed, next_step="correct the file") from None
    return held_against(document, model, source=source, text=text, error=error, schema=schema)


def held_against(
    document: object,
    model: type[Model],
    *,
    source: str,
    text: str | None = None,
    error: type[ConfigurationError] = CardError,
    schema: str | None = None,
) -> Model:
    """Build a model from a document; `text` is its YAML source. Raises `error` as `parse` does."""
    try:
        return checked(document, model)
    except DocumentError as wrong:
        raise _refusal(text, wrong, source=source, error=error, schema=schema) from None


def refusal(text: str, path: KeyPath, *, source: str, observed: str, expected: str) -> ConfigurationError:
    """Return the error for a value that conflicts with other values, such as an unknown name."""
    wrong = DocumentError(path=path, observed=observed, expected=expected)
    return _refusal(text, wrong, source=source, error=CardError)


def own_folder() -> Path:
    """Return the folder `configs/`: in the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    bundled = package / "_bundled" / "configs"
    return bundled if bundled.is_dir() else package.parent / "configs"


def _refusal(
    text: str | None, wrong: DocumentError, *, source: str, error: type[ConfigurationError], schema: str | None = None
) -> ConfigurationError:
    where = source if text is None else f"{source} line {line_of(compose_yaml(text), wrong.path)}"
    hint = f"; the JSON Schema is {schema}" if schema else ""
    return error(
        f"{where}: {wrong.what}",
        observed=wrong.observed,
        expected=wrong.expected,
        next_step=f"correct {'it' if text is None else 'the file'}{hint}",
    )
