"""Configuration files: YAML read into a model, a wrong one refused with file, line and reason.

Belongs here: what the files of `configs/` share. Does not belong here: what any of them says (`stages/card.py`,
`alerts/plan.py`), or the environment (`settings.py`).
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kfm_dagster.documents.checking import DocumentError, KeyPath, Model, checked, line_of
from kfm_dagster.documents.yaml_text import compose_yaml, read_yaml
from kfm_dagster.errors import ConfigurationError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST_DAYS = 3650
"""Ten years. Without a bound, the moment that lies so far back or ahead is no date any more."""


class CardError(ConfigurationError):
    """The pipeline card is wrong."""


class Strict(BaseModel):
    """A part of a file: an unknown key is refused, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _duration(value: object) -> object:
    """Read `10m`, `1.5h`; anything else is pydantic's to refuse."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _SECONDS[match[2]]
        if seconds > LONGEST_DAYS * _SECONDS["d"]:
            raise ValueError(f"no more than {LONGEST_DAYS}d")
        return timedelta(seconds=seconds)
    if isinstance(value, timedelta):
        return value
    raise ValueError("a number and one of ms, s, m, h, d, such as 10m")


Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A text of people's own, on one line: a control character breaks the lines of a log, and no database keeps a NUL."""

Duration = Annotated[
    timedelta,
    BeforeValidator(_duration, json_schema_input_type=Annotated[str, Field(pattern=f"^{_DURATION.pattern}$")]),
    Field(ge=timedelta(0)),
]


def text_of(content: bytes, *, source: str) -> str:
    """Return a file's text. Raises CardError naming the source and the line of what is no UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise CardError(
            f"{source} line {line} is no UTF-8 text",
            observed=f"the byte 0x{content[error.start]:02x}",
            next_step="save the file as UTF-8",
        ) from None


def text_in(folder: Path | None, name: str) -> tuple[str, str]:
    """Return text and path of a folder's file, or of this release's where it has none. Raises CardError."""
    path = (own_folder() if folder is None else folder) / name
    if not path.exists():
        path = own_folder() / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CardError(f"{path} cannot be read", observed=error.strerror, next_step="correct the file") from None
    return text_of(content, source=str(path)), str(path)


def parse(text: str, model: type[Model], *, source: str) -> Model:
    """Build a model from YAML text. Raises CardError naming the source and the line of the first wrong key."""
    try:
        document: Any = read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source} line {mark.line + 1}"
        raise CardError(
            f"{where} is not valid YAML", observed=getattr(error, "problem", None), next_step="correct the file"
        ) from None
    try:
        return checked(document, model)
    except DocumentError as wrong:
        raise _refusal(compose_yaml(text), wrong, source=source) from None


def refusal(text: str, path: KeyPath, *, source: str, observed: str, expected: str) -> CardError:
    """Return the refusal of a value that is right by itself and wrong beside others, such as a name of nothing."""
    wrong = DocumentError(path=path, observed=observed, expected=expected)
    return _refusal(compose_yaml(text), wrong, source=source)


def json_schema(model: type[BaseModel], *, name: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of a file of `configs/`; published as docs/spec/NAME.schema.json for editors and CI.

    It knows the form of each part, not what the parts must be beside each other: that is what reading refuses.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:kfm:nodd:{name}:v1",
        **model.model_json_schema(),
    }


def own_folder() -> Path:
    """Return the folder `configs/`: inside the wheel when installed, beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    bundled = package / "_bundled" / "configs"
    return bundled if bundled.is_dir() else package.parent / "configs"


def _refusal(tree: yaml.Node | None, wrong: DocumentError, *, source: str) -> CardError:
    return CardError(
        f"{source} line {line_of(tree, wrong.path)}: {wrong.what}",
        observed=wrong.observed,
        expected=wrong.expected,
        next_step="correct the file",
    )
