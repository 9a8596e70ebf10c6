"""Entries of the AWS open-data registry, from YAML files of awslabs/open-data-registry.

Belongs here: topics, buckets, licence and retirement in an entry. Does not belong here: the comparison with the
contracts (`drift.py`). Nothing is fetched: the files are in a folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kfm_dagster.configs import parse, read_text
from kfm_dagster.errors import ConfigurationError

CLONE = Path("open-data-registry/datasets")
"""Folder of the entries in a clone of the registry."""
UNKNOWN_LICENSE = "other"
"""STAC's value for a licence without an SPDX identifier."""
_LICENSES = {
    # The pattern's second part is NOAA's older statement. It means CC0, because entries with the newer statement (RRFS)
    # add that CC0 "is applicable to each of the NOAA datasets made available by NODD". The third part is the statement
    # of the National Water Model's entries.
    "CC0-1.0": re.compile(
        r"CC0|open to the public and can be used as desired|no restrictions on the use", re.IGNORECASE
    ),
    "CC-BY-4.0": re.compile(r"CC BY 4\.0"),
}
"""Texts of the registry's licences by SPDX identifier; the first match counts."""
_RETIREMENT = re.compile(
    r"\bno longer (?:be )?(?:updated|available|flow|provided|produced|supported|maintained)\b"
    r"|\b(?:is|are|was|were|be|been|being) (?:now )?"
    r"(?:retired|discontinued|decommissioned|deprecated|superseded|frozen|turned off)\b"
    r"|\b(?:replaced by|replaces|ceased|ended (?:at|on))\b",
    re.IGNORECASE,
)
"""Words that announce an end of data, from the sentences of NOAA's entries in August 2026."""
_REPLACED = re.compile(r"\breplaces\b.*?\((\w+)\)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def _plain(text: object) -> object:
    """Return a text in one line without HTML tags, '' for None, and any other value unchanged."""
    return " ".join(re.sub(r"<[^>]*>", " ", text).split()) if isinstance(text, str) else "" if text is None else text


Plain = Annotated[str, BeforeValidator(_plain)]


class RegistryEntry(BaseModel):
    """An entry of the registry; its other keys are not read."""

    model_config = ConfigDict(frozen=True)
    name: str = Field("", description="Name of the file, and last part of the address of the registry's page.")
    title: Plain = Field(alias="Name")
    text: Plain = Field("", alias="Description")
    license_text: Plain = Field("", alias="License")
    managed_by: Plain = Field("", alias="ManagedBy")
    update_frequency: Plain = Field("", alias="UpdateFrequency")
    deprecated: Any = Field(None, alias="Deprecated")
    notice: Plain = Field("", alias="DeprecatedNotice")
    resources: list[dict[str, Any]] = Field([], alias="Resources")

    @property
    def description(self) -> str:
        """The first three sentences of the entry's text, without Markdown; the text may have pages."""
        sentences = _SENTENCE_END.split(re.sub(r"\[([^\]]*)\]\([^)]*\)|#{2,} |\*\*", r"\1", self.text))
        return " ".join(sentences[:3]) or self.title

    @property
    def license(self) -> str:
        """SPDX identifier of the licence, `other` for an unknown text."""
        return next((spdx for spdx, text in _LICENSES.items() if text.search(self.license_text)), UNKNOWN_LICENSE)

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """ARNs of the SNS topics."""
        arns = (str(resource.get("ARN")) for resource in self.resources)
        return tuple(arn for arn in arns if arn.startswith("arn:aws:sns:"))

    @cached_property
    def buckets(self) -> Mapping[str, str]:
        """Regions by bucket."""
        prefix = "arn:aws:s3:::"
        regions = {str(resource.get("ARN")): str(resource.get("Region")) for resource in self.resources}
        return {arn.removeprefix(prefix): region for arn, region in regions.items() if arn.startswith(prefix)}

    @property
    def is_of_noaa(self) -> bool:
        """Whether the entry has data of NOAA; the registry also has data of other providers."""
        return "noaa" in " ".join((self.title, self.managed_by, self.license_text, *self.buckets)).lower()

    @cached_property
    def retirements(self) -> tuple[str, ...]:
        """Sentences of this entry that announce an end of its own data or of another entry's data."""
        texts = [self.text, self.update_frequency, *(str(resource.get("Description")) for resource in self.resources)]
        sentences = (sentence for text in texts for sentence in _SENTENCE_END.split(text))
        deprecated = [f"Deprecated. {self.notice or 'No notice.'}"] if self.deprecated else []
        return tuple(dict.fromkeys((*deprecated, *filter(_RETIREMENT.search, sentences))))


@dataclass(frozen=True)
class OpenDataRegistry:
    """Entries by name."""

    entries: Mapping[str, RegistryEntry]

    @classmethod
    def read(cls, folder: Path) -> OpenDataRegistry:
        """Read a folder's `*.yaml`; raise ConfigurationError for a faulty file or an empty folder."""
        files = sorted(folder.glob("*.yaml"))
        entries = (
            parse(read_text(file), RegistryEntry, source=str(file)).model_copy(update={"name": file.stem})
            for file in files
        )
        if not files:
            raise ConfigurationError(
                "the folder has no entries of the open-data registry",
                observed=str(folder),
                expected="a folder of YAML files, one per entry",
                next_step="git clone --depth 1 https://github.com/awslabs/open-data-registry, and name its datasets/",
            )
        return cls({entry.name: entry for entry in entries})

    def __getitem__(self, name: str) -> RegistryEntry:
        if name not in self.entries:
            alike = [entry for entry in self.entries if name in entry] or get_close_matches(name, self.entries)
            raise ConfigurationError(
                "the registry has no entry of that name",
                observed=name,
                expected=" or ".join(alike) or "the name of a file without .yaml",
            )
        return self.entries[name]

    @cached_property
    def topics(self) -> Mapping[str, RegistryEntry]:
        """Entries by topic ARN."""
        return {arn: entry for entry in self.entries.values() for arn in entry.topics}

    @cached_property
    def buckets(self) -> Mapping[str, str]:
        """Regions by bucket."""
        return {bucket: region for entry in self.entries.values() for bucket, region in entry.buckets.items()}

    def retired_buckets(self, entry: RegistryEntry, sentence: str) -> frozenset[str]:
        """Return the buckets whose data end according to a sentence of an entry.

        These are the buckets that the sentence names; else the buckets of the entry whose title has the acronym that
        follows "replaces" in the sentence; else the entry's own buckets.
        """
        if named := set(re.findall(r"[\w-]+", sentence)) & self.buckets.keys():
            return frozenset(named)
        if replaced := _REPLACED.search(sentence):
            entries = (other for other in self.entries.values() if f"({replaced[1]})" in other.title)
            return frozenset(bucket for other in entries for bucket in other.buckets)
        return frozenset(entry.buckets)
