"""Drift: the differences of the contracts from the AWS open-data registry.

Belongs here: the comparison, and the exceptions that a maintainer has decided. Does not belong here: the registry's
files (`open_data.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import Field

from kfm_dagster.configs import Line, Strict, parse, text_in
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.open_data import OpenDataRegistry
from kfm_dagster.errors import KfmError

EXCEPTIONS = "registry-exceptions.yaml"
_EXCEPTED = f"a line in {EXCEPTIONS}"
KINDS = {
    "gone": ("no entry has the {noun} of {datasets}", "look for its end or successor, then correct the contract"),
    "moved": ("an entry has the {noun} of {datasets} in another account or region", "correct the contract"),
    "alike": (
        "an entry has a {noun} like the one of {datasets}",
        "compare both; correct the contract, or add an exception with the reason",
    ),
    "untaken": ("no contract names the {noun}", "kfm dataset new --from-registry, or add an exception with the reason"),
    "differs": ("an entry has another {noun} than {datasets}", "read the entry, then correct the contract"),
    "retired": (
        "an entry announces the end of data of {datasets}",
        "set metadata.status, or add an exception with the reason",
    ),
    "stale": ("the exception does not apply any more", "remove it"),
}
"""The difference and the next step, by the last word of a drift's kind."""
_ALIKE = 0.9
"""Least ratio of difflib for names that are alike: a letter in ten may differ."""
_SHOWN = 300
"""Characters of a licence or sentence that are shown."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference; `observed` is the registry's state."""

    kind: str
    subject: str
    what: str
    observed: str
    expected: str
    next_step: str

    def __str__(self) -> str:
        error = KfmError(self.what, observed=self.observed, expected=self.expected, next_step=self.next_step)
        return f"{self.kind} {self.subject}: {error}"


class RegistryExceptions(Strict):
    """`registry-exceptions.yaml`: differences that a maintainer has examined, with reasons."""

    version: Literal["1.0.0"]
    untaken_topics: dict[str, Line] = Field(description="Topics of the registry that no contract names.")
    unlisted_topics: dict[str, Line] = Field(description="Topics of contracts that the registry does not list.")
    retirements: dict[str, Line] = Field(
        description="Parts of sentences that announce an end of data, but not of a dataset with a contract."
    )

    @classmethod
    def load(cls, folder: Path | None) -> RegistryExceptions:
        """Read the folder's file, else that of this release; raise CardError for a faulty file."""
        text, source = text_in(folder, EXCEPTIONS)
        return parse(text, cls, source=source)


def drifts(contracts: ContractRegistry, registry: OpenDataRegistry, exceptions: RegistryExceptions) -> Iterator[Drift]:
    """Yield every difference once."""
    living = {arn: users for arn, takers in contracts.topics.items() if (users := _living(takers))}
    unlisted = {arn: users for arn, users in living.items() if arn not in exceptions.unlisted_topics}
    yield from _missing("topic", unlisted, registry.topics.keys() - contracts.topics, registry.topics)
    yield from _missing("bucket", contracts.buckets, registry.buckets.keys() - contracts.buckets, registry.buckets)
    for arn, entry in registry.topics.items():
        is_excepted = arn in contracts.topics or arn in exceptions.untaken_topics or not entry.is_of_noaa
        # A topic that resembles a missing topic is reported with the missing topic.
        if not is_excepted and not _resembling(arn, unlisted.keys() - registry.topics):
            namesakes = [user for name in living if _short(name) == _short(arn) for user in living[name]]
            kind = "topic-alike" if namesakes else "topic-untaken"
            yield _drift(kind, arn, f"{entry.name}: {entry.title}", f"a contract, or {_EXCEPTED}", namesakes)
    for contract in contracts:
        yield from _differences(contract, registry)
    yield from _retirements(contracts, registry, exceptions.retirements)
    for arn in exceptions.untaken_topics:
        if arn in contracts.topics or arn not in registry.topics:
            yield _drift("exception-stale", arn, _place(arn, contracts, registry), "in an entry, and in no contract")
    for arn in exceptions.unlisted_topics:
        if arn in registry.topics or arn not in living:
            yield _drift("exception-stale", arn, _place(arn, contracts, registry), "in no entry, but in a contract")


def _missing(
    noun: str, used: Mapping[str, Iterable[DatasetContract]], unused: Collection[str], listed: Collection[str]
) -> Iterator[Drift]:
    """Yield contracts' topics or buckets that no entry has, with similar unused names."""
    for name, users in used.items():
        if name not in listed:
            alike = _resembling(name, unused)
            moved = [other for other in alike if _short(other) == _short(name)]
            kind = "moved" if moved else "alike" if alike else "gone"
            observed = ", ".join(moved or alike) or f"no {noun} of a similar name"
            yield _drift(f"{noun}-{kind}", name, observed, name, users)


def _differences(contract: DatasetContract, registry: OpenDataRegistry) -> Iterator[Drift]:
    """Yield the differences of a contract's region and licence from the entries of its buckets."""
    for bucket in contract.storage.buckets:
        if (region := registry.buckets.get(bucket, contract.storage.region)) != contract.storage.region:
            yield _drift("bucket-moved", bucket, region, contract.storage.region, [contract])
    for entry in registry.entries.values():
        expected = contract.governance.license
        if entry.license != expected and not entry.buckets.keys().isdisjoint(contract.storage.buckets):
            observed = f"{entry.license} in {entry.name}: {entry.license_text[:_SHOWN] or 'no text'}"
            yield _drift("license-differs", contract.id, observed, expected, [contract])


def _retirements(contracts: ContractRegistry, registry: OpenDataRegistry, quotes: Iterable[str]) -> Iterator[Drift]:
    """Yield announced ends of living (not retired) datasets, and exceptions without such an end."""
    unused = dict.fromkeys(quotes)
    for entry in registry.entries.values():
        for sentence in entry.retirements:
            buckets = sorted(registry.retired_buckets(entry, sentence))
            users = _living(user for bucket in buckets for user in contracts.buckets.get(bucket, ()))
            quoted = [quote for quote in quotes if quote in sentence]
            if users and not quoted:
                yield _drift("retired", entry.name, sentence[:_SHOWN], f"a living dataset, or {_EXCEPTED}", users)
            for quote in quoted if users else ():
                unused.pop(quote, None)
    for quote in unused:
        yield _drift(
            "exception-stale", quote, "in no entry of a living dataset", "a part of a sentence about an end of data"
        )


def _drift(kind: str, subject: str, observed: str, expected: str, contracts: Iterable[DatasetContract] = ()) -> Drift:
    noun, _, last = kind.rpartition("-")
    what, next_step = KINDS[last]
    what = what.format(noun=noun, datasets=_names(contracts))
    return Drift(kind, subject, what, observed, expected, next_step)


def _place(arn: str, contracts: ContractRegistry, registry: OpenDataRegistry) -> str:
    entry = registry.topics[arn].name if arn in registry.topics else "no entry"
    return f"in {entry}, named by {_names(contracts.topics.get(arn, ())) or 'no contract'}"


def _names(contracts: Iterable[DatasetContract]) -> str:
    return ", ".join(dict.fromkeys(contract.id for contract in contracts))


def _living(contracts: Iterable[DatasetContract]) -> list[DatasetContract]:
    return [contract for contract in contracts if contract.metadata.retired is None]


def _short(name: str) -> str:
    """Return a topic's name without region and account, or a bucket's name, in small letters."""
    return name.rpartition(":")[2].lower()


def _resembling(name: str, others: Collection[str]) -> list[str]:
    """Return the topics or buckets with almost the same name, in any account and region."""
    close = get_close_matches(_short(name), map(_short, others), cutoff=_ALIKE)
    return sorted(other for other in others if _short(other) in close)
