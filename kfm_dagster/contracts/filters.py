"""Filters of lists: models with published parameters, read from and written to URL queries.

Belongs here: the parts that all filters share. Does not belong here: the filters themselves (`views/`, `ledger/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import KfmError

EXPECTED = "x-expected"
"""Member of a parameter's schema that describes its values in words."""


class BadFilterError(KfmError):
    """A filter has no such parameter or value."""


def _moment(value: datetime | str) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(value) from error


_DAY_OR_MOMENT = "a day or a moment of RFC 3339, such as 2025-12-03 or 2025-12-03T06:00:00Z"
Moment = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema({"type": "string", EXPECTED: _DAY_OR_MOMENT})]
"""A moment, or the beginning of a day, in UTC unless it names another zone."""


def _digits(value: int | str) -> int | str:
    # Nine ASCII digits fit a database integer; int() alone would take thousands of digits of any script.
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,9}", value):
        raise ValueError(value)
    return value


def _flag(value: object) -> object:
    if value not in {True, False, "true", "false"}:
        raise ValueError(value)
    return value


MOST_DAYS = 366
Days = Annotated[int, Field(ge=1, le=MOST_DAYS), BeforeValidator(_digits)]
Flag = Annotated[bool, BeforeValidator(_flag)]
DatasetId = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$", json_schema_extra={EXPECTED: "the id of a dataset"})]


class Filter(BaseModel):
    """The rows that a list shows. A field without a value matches every row."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def of_query(cls, pairs: Iterable[tuple[str, str]]) -> Self:
        """Read a URL's query, where an empty value counts as absent. Raises BadFilterError."""
        arguments = list(pairs)
        names = [name for name, _ in arguments]
        unknown = sorted(set(names) - set(cls.model_fields))
        if unknown or len(set(names)) < len(names):
            raise BadFilterError(
                observed=repr(unknown[0][:40]) if unknown else "a parameter twice",
                expected=f"{', '.join(cls.model_fields)}, each at most once",
            )
        try:
            return cls.model_validate({name: value for name, value in arguments if value})
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            name = str(fault["loc"][0])
            raise BadFilterError(
                observed=f"{name}={str(fault['input'])[:80]!r}", expected=_words(cls.parameters()[name])
            ) from None

    def query(self) -> list[tuple[str, str]]:
        """Return the pairs that `of_query` reads."""
        return list(texts(dict(self)).items())

    @classmethod
    def parameters(cls) -> dict[str, dict[str, Any]]:
        """Return the JSON Schema of each field's text, with its description, by name."""
        schema = cls.model_json_schema()
        enums = schema.get("$defs", {})
        return {name: _parameter(value, enums) for name, value in schema["properties"].items()}


class OfDataset(Filter):
    """Rows of a dataset, or of all datasets."""

    dataset: DatasetId | None = Field(None, description="Only of this dataset.")


def _parameter(schema: dict[str, Any], enums: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema without null, and with the values of its enum."""
    flat = {**schema, **schema.get("anyOf", [{}])[0]}
    flat = {**flat, **enums.get(flat.pop("$ref", "").rpartition("/")[2], {})}
    members = {
        name: value for name, value in flat.items() if name not in {"anyOf", "$ref", "title"} and value is not None
    }
    return members | {"description": schema["description"]}


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as the texts of a query; an empty value is left out."""
    return {name: _text(value) for name, value in values.items() if value}


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return rfc3339(value)
    return "true" if value is True else str(value)


def _words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if schema["type"] == "integer":
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    return str(schema.get(EXPECTED, "true or false"))
