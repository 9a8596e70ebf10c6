"""Contract loader: YAML files to a registry, with the checks that span contracts.

`ContractRegistry.load()` reads the built-in contracts of the package and the contracts of the user's folder. `draft`
derives a contract for another dataset by editing the text of a built-in contract with the same reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import combinations, product
from pathlib import Path
from textwrap import indent

import yaml

from kfm_dagster.configs import parse, read_text
from kfm_dagster.contracts.formats import with_format
from kfm_dagster.contracts.key_grammar import KeyGrammarReader, KeyKind
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.open_data import RegistryEntry
from kfm_dagster.contracts.source import BUCKET_NAME, TOPIC_ARN, MessageShape
from kfm_dagster.errors import ContractError


@lru_cache(maxsize=8)
def _of_texts(texts: tuple[tuple[str, str], ...]) -> ContractRegistry:
    return ContractRegistry.of(parse_contract(text, source=source) for source, text in texts)


@lru_cache(maxsize=64)
def parse_contract(text: str, *, source: str) -> DatasetContract:
    """Build a contract with its format's fields from YAML, or raise ContractError.

    Cached: parsing the built-in contracts takes two thirds of the time to open a pipeline, and contracts are frozen.
    """
    schema = "docs/spec/dataset-contract.schema.json"
    return with_format(parse(text, DatasetContract, source=source, error=ContractError, schema=schema))


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The kind of a key, and the contract whose prefixes or ignore patterns match the key."""

    kind: KeyKind
    contract: DatasetContract | None


@dataclass(frozen=True, eq=False)
class ContractRegistry:
    """The contracts of the followed datasets, and the routing of keys to them."""

    contracts: Mapping[str, DatasetContract]
    unfollowed: Mapping[str, DatasetContract] = field(default_factory=dict)
    """Contracts of datasets that the deployment does not follow (KFM_DATASETS); messages about them are ignored."""

    @classmethod
    def load(cls, extra_dir: Path | None = None) -> ContractRegistry:
        """Read the built-in contracts and every `*.yaml` in `extra_dir`. Raises ContractError.

        Equal texts give the same registry object.
        """
        texts = [(file.name, file.read_text(encoding="utf-8")) for file in _shipped().values()]
        if extra_dir is not None:
            if not extra_dir.is_dir():
                raise ContractError(
                    "KFM_CONTRACTS_DIR is not a folder",
                    observed=str(extra_dir),
                    next_step="create it or unset the variable",
                )
            if orphans := sorted(path.name for path in extra_dir.glob("*.yml")):
                raise ContractError(
                    "a contract in KFM_CONTRACTS_DIR would never be read",
                    observed=", ".join(orphans),
                    expected="files that end in .yaml",
                    next_step="rename it",
                )
            texts += [(path.name, read_text(path, error=ContractError)) for path in sorted(extra_dir.glob("*.yaml"))]
        return _of_texts(tuple(texts))

    @classmethod
    def of(cls, contracts: Iterable[DatasetContract]) -> ContractRegistry:
        """Check contracts against each other and build the registry. Raises ContractError."""
        by_id: dict[str, DatasetContract] = {}
        for contract in contracts:
            if contract.id in by_id:
                raise ContractError("two contracts share a dataset id", observed=contract.id, expected="unique ids")
            by_id[contract.id] = contract
        if not by_id:
            raise ContractError("no dataset contract exists", expected="at least one YAML file")
        _refuse_unknown_successors(by_id)
        _refuse_strange_collections(list(by_id.values()))
        for left, right in combinations(by_id.values(), 2):
            _refuse_shared_keys(left, right)
            _refuse_split_topic(left, right)
        return cls(contracts=dict(sorted(by_id.items())))

    def only(self, names: Iterable[str]) -> ContractRegistry:
        """Return a registry of these datasets, or of all if `names` is empty. Raises ContractError."""
        return _following(self, frozenset(names) or frozenset(self.contracts))

    @cached_property
    def every(self) -> ContractRegistry:
        """The registry of all datasets, followed or not."""
        contracts = {**self.contracts, **self.unfollowed}
        return ContractRegistry(contracts=dict(sorted(contracts.items()))) if self.unfollowed else self

    def public_id(self, dataset: str) -> str:
        """Return a dataset's public name, or the id of a dataset without a contract."""
        contract = self.contracts.get(dataset)
        return dataset if contract is None else contract.public_id

    def __iter__(self) -> Iterator[DatasetContract]:
        return iter(self.contracts.values())

    def __getitem__(self, dataset: str) -> DatasetContract:
        try:
            return self.contracts[dataset]
        except KeyError:
            is_known = dataset in self.unfollowed
            raise ContractError(
                "the deployment does not follow this dataset" if is_known else "unknown dataset",
                observed=dataset,
                expected="one of " + ", ".join(self.contracts),
                next_step="add it to KFM_DATASETS" if is_known else "kfm dataset list",
            ) from None

    def owner(self, contract: DatasetContract) -> DatasetContract:
        """Return the contract that defines the Collection of a dataset; mostly the dataset's own."""
        return self[contract.stac.collection_of or contract.id]

    def versions(self, contract: DatasetContract) -> list[tuple[str, DatasetContract]]:
        """Return a dataset's successor and predecessors, each with its link relation (RFC 5829).

        Each is represented by the owner of its Collection. Unfollowed and governed datasets are left out.
        """
        successors = {other.id: other.metadata.retired.successor for other in self if other.metadata.retired}
        related = [("predecessor-version", other) for other in self if successors.get(other.id) == contract.id]
        related += [("successor-version", other) for other in self if successors.get(contract.id) == other.id]
        owners = [(relation, self.owner(other)) for relation, other in related if not other.governed]
        return [(relation, owner) for relation, owner in owners if owner is not contract]

    def live_topics(self, day: date) -> set[str]:
        """Return the ARNs of the topics that deliver on a UTC day."""
        return {arn for contract in self for arn in contract.live_topics(day)}

    @cached_property
    def first_day(self) -> date:
        """First day of the earliest dataset: no partition is earlier."""
        return min(contract.storage.first_day for contract in self)

    @cached_property
    def grammars(self) -> Mapping[str, KeyGrammarReader]:
        """Compiled key grammar by dataset id."""
        return {contract.id: KeyGrammarReader(contract) for contract in self}

    @cached_property
    def topics(self) -> Mapping[str, tuple[DatasetContract, ...]]:
        """Contracts by topic ARN."""
        by_arn: dict[str, tuple[DatasetContract, ...]] = {}
        for contract in self:
            for topic in contract.notifications.topics:
                by_arn[topic.arn] = (*by_arn.get(topic.arn, ()), contract)
        return by_arn

    @cached_property
    def shapes(self) -> Mapping[str, MessageShape]:
        """Message shape of each topic, by ARN."""
        return {topic.arn: topic.message_shape for contract in self for topic in contract.notifications.topics}

    @cached_property
    def buckets(self) -> Mapping[str, tuple[DatasetContract, ...]]:
        """Contracts by bucket."""
        by_bucket: dict[str, tuple[DatasetContract, ...]] = {}
        for contract in self:
            for bucket in contract.storage.buckets:
                by_bucket[bucket] = (*by_bucket.get(bucket, ()), contract)
        return by_bucket

    @cached_property
    def announced(self) -> Mapping[tuple[str | None, str], frozenset[str]]:
        """Dataset ids by topic and bucket; topic None is raw message delivery, which names no topic."""
        datasets: dict[tuple[str | None, str], frozenset[str]] = {}
        for contract in self:
            for topic in (None, *(topic.arn for topic in contract.notifications.topics)):
                for bucket in contract.storage.buckets:
                    datasets[topic, bucket] = datasets.get((topic, bucket), frozenset()) | {contract.id}
        return datasets

    def route(self, *, bucket: str, key: str) -> Route:
        """Return the dataset of a key and the key's kind in it.

        A key outside all prefixes is IGNORED only if a contract of the bucket ignores it, else FOREIGN, so that an
        unknown product is never dropped in silence.
        """
        contracts = self.buckets.get(bucket, ())
        for contract in contracts:
            if key.startswith(tuple(contract.storage.prefixes)):
                return Route(kind=self.grammars[contract.id].kind(key), contract=contract)
        for contract in contracts:
            if self.grammars[contract.id].kind(key) is KeyKind.IGNORED:
                return Route(kind=KeyKind.IGNORED, contract=contract)
        return Route(kind=KeyKind.FOREIGN, contract=None)


class DeferredRegistry(ContractRegistry):
    """A folder's registry, loaded on first use: most reading commands need no contract."""

    def __init__(self, extra_dir: Path | None) -> None:
        vars(self).update(extra_dir=extra_dir, unfollowed={})

    @cached_property
    def contracts(self) -> Mapping[str, DatasetContract]:
        """The contracts. Raises ContractError."""
        return ContractRegistry.load(vars(self)["extra_dir"]).contracts


@lru_cache(maxsize=16)
def _following(registry: ContractRegistry, names: frozenset[str]) -> ContractRegistry:
    if unknown := names - registry.contracts.keys():
        raise ContractError(
            "KFM_DATASETS names an unknown dataset",
            observed=", ".join(sorted(unknown)),
            expected="some of " + ", ".join(registry.contracts),
            next_step="kfm dataset list",
        )
    followed = {name: contract for name, contract in registry.contracts.items() if name in names}
    if len(followed) == len(registry.contracts):
        return registry
    if missing := {registry.owner(contract).id for contract in followed.values()} - names:
        raise ContractError(
            "KFM_DATASETS lacks a dataset that defines the Collection of another dataset",
            observed=", ".join(sorted(names)),
            expected="also " + ", ".join(sorted(missing)),
        )
    rest = {name: contract for name, contract in registry.contracts.items() if name not in names}
    return ContractRegistry(contracts=followed, unfollowed=rest)


def _shipped() -> dict[str, Traversable]:
    """Return the files of the built-in contracts by dataset id, in order."""
    files = (resources.files("kfm_dagster.contracts") / "datasets").iterdir()
    contracts = sorted((file for file in files if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): file for file in contracts}


def _refuse_unknown_successors(contracts: Mapping[str, DatasetContract]) -> None:
    for contract in contracts.values():
        successor = contract.metadata.retired and contract.metadata.retired.successor
        if successor and (successor == contract.id or successor not in contracts):
            raise ContractError(
                "metadata.retired.successor is not another dataset with a contract",
                observed=f"{contract.id}: {successor}",
                expected="one of " + ", ".join(name for name in contracts if name != contract.id),
                next_step="add its contract, or write null",
            )


def _refuse_strange_collections(contracts: list[DatasetContract]) -> None:
    """Refuse a Collection of two datasets unless all but its owner declare collection_of."""
    owners = {contract.id: contract for contract in contracts if contract.stac.collection_of is None}
    for contract in contracts:
        if (owner := contract.stac.collection_of) is None:
            continue
        if owner not in owners or owners[owner].stac.collection != contract.stac.collection:
            raise ContractError(
                "stac.collection differs from that of the dataset in stac.collection_of",
                observed=f"{contract.id}: {contract.stac.collection}, stac.collection_of {owner}",
                expected="the Collection of a dataset whose contract has no stac.collection_of",
            )
        if contract.governance != owners[owner].governance:
            # With two governances, Items that the owner withholds, masks or embargoes would still reach the Collection.
            raise ContractError(
                "a Collection is governed in two ways",
                observed=f"{contract.id} adds to {owner}, and their governance differs",
                expected="one governance for all that write a Collection",
            )
    for left, right in combinations(owners.values(), 2):
        if left.stac.collection == right.stac.collection:
            raise ContractError(
                "two contracts write the same STAC collection",
                observed=f"{left.id} and {right.id}: {left.stac.collection}",
                expected="one collection per dataset, or stac.collection_of in the contract that adds to it",
            )


def _refuse_shared_keys(contract: DatasetContract, other: DatasetContract) -> None:
    shared = sorted(set(contract.storage.buckets) & set(other.storage.buckets))
    for left in contract.storage.prefixes if shared else []:
        for right in other.storage.prefixes:
            if left.startswith(right) or right.startswith(left):
                raise ContractError(
                    "two contracts claim the same keys, so a topic cannot be routed",
                    observed=f"{contract.id} ({left!r}) and {other.id} ({right!r}) in {shared[0]}",
                    expected="prefixes that cover disjoint sets of keys",
                    next_step="make the prefixes disjoint, or merge the two contracts",
                )


def _refuse_split_topic(contract: DatasetContract, other: DatasetContract) -> None:
    """Refuse a topic with two queues or two shapes of message.

    SNS would deliver both datasets' messages to each of the queues. A message does not state its shape.
    """
    for left, right in product(contract.notifications.topics, other.notifications.topics):
        if left.arn == right.arn and left.message_shape != right.message_shape:
            raise ContractError(
                "two contracts give a topic different shapes of message",
                observed=f"{left.arn}: {contract.id} {left.message_shape}, {other.id} {right.message_shape}",
                expected="one shape per topic",
            )
    for arn in sorted({topic.arn for topic in contract.notifications.topics}):
        if any(topic.arn == arn for topic in other.notifications.topics) and contract.queue.name != other.queue.name:
            raise ContractError(
                "two contracts map a topic to different queues",
                observed=f"{arn}: {contract.id} to {contract.queue.name}, {other.id} to {other.queue.name}",
                expected="one queue per topic",
            )


DATASET_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TOPICS = re.compile(r"(?m)^    - \{?arn: .*(\n    (- \{?arn|  ).*)*$")
_HEAD = """\
# Derived from the contract of {like}. Review it from top to bottom:
#   metadata    title, description
#   storage     first_day (units of earlier days are rejected); prefixes, key_grammar, ignore, sidecars, listing,
#               listing_sets: how the keys of this bucket are built
#   integrity   min_bytes, max_bytes, and peers if the variation of sizes is known
#   stac        item_id (groups of the key), providers, keywords, summaries
#   key_values  values that objects and keys must share
#   citations, units   sources and units of this dataset's own fields, beside those of the reader's format
#   freshness, coverage   maximum age of a unit, objects of a day: omit them if unknown
# Then: kfm dataset check FILE --sample DIR/{bucket}/KEY
"""


def draft(*, dataset: str, like: str, bucket: str, topic: str | None, entry: RegistryEntry | None = None) -> str:
    """Return the text of a contract for `dataset`, derived from the shipped contract of `like`.

    Names, bucket and topic are replaced; with an `entry` of the open-data registry, title, description, region and
    license are replaced, too. Comments, status, mirrors, key values, coverage, peers and virtual stores are left out.
    Raises ContractError for a malformed or taken id, a topic that is not an SNS ARN, a missing or superfluous topic, a
    `like` that is not a built-in contract, or a malformed bucket name.
    """
    if not DATASET_ID.fullmatch(dataset):
        raise ContractError("malformed dataset id", observed=dataset, expected="small letters, digits and hyphens")
    if not re.fullmatch(BUCKET_NAME, bucket):
        raise ContractError(
            "not the name of a bucket", observed=bucket, expected="3 to 63 small letters, digits, dots, hyphens"
        )
    if topic is not None and not re.fullmatch(TOPIC_ARN, topic):
        raise ContractError(
            "the topic is not an ARN of SNS",
            observed=topic,
            expected="arn:aws:sns:REGION:ACCOUNT:NAME",
            next_step="give --topic as the AWS open-data registry has it",
        )
    shipped = _shipped()
    if like not in shipped:
        raise ContractError("no built-in contract has this id", observed=like, expected=" or ".join(shipped))
    if dataset in shipped:
        raise ContractError("a built-in contract has this id already", observed=dataset, expected="an id of its own")
    # Comments are left out, because they state facts of the dataset `like`.
    text = re.sub(r"(?m)^ *#.*\n", "", shipped[like].read_text(encoding="utf-8"))
    is_announced = _TOPICS.search(text) is not None
    if topic is None and entry is not None and is_announced:
        # The registry knows no topic, so the bucket is listed once a day.
        text = re.sub(r"(?m)^  topics:\n(?:    .*\n)+", "", text)
        text = text.replace("\nstorage:\n", "\nstorage:\n  scheduled_listing: {every_seconds: 86400, days_back: 31}\n")
    elif (topic is not None) != is_announced:
        raise ContractError(
            f"{like} is announced by {'no topic' if topic else 'a topic'}",
            observed=f"--topic {topic}" if topic else "no --topic",
            next_step="leave --topic out" if topic else "give --topic as the AWS open-data registry has it",
        )
    # The old id is not replaced on the lines of reader, labels and keywords, and in URLs, which must still resolve.
    pattern = rf"(?m)^  (?:reader|labels|keywords):.*$|https?://\S+|\b{re.escape(like)}\b"
    text = re.sub(pattern, lambda match: dataset if match[0] == like else match[0], text)
    facts = {"title": dataset, "description": f"What {dataset} is."}
    if entry is not None:
        facts = {"title": entry.title, "description": entry.description, "license": entry.license}
        facts |= {"region": entry.buckets[bucket]} if bucket in entry.buckets else {}
    for key, fact in facts.items():
        line = indent(yaml.safe_dump({key: fact}, allow_unicode=True, width=110).rstrip(), "  ").replace("\\", r"\\")
        text = re.sub(rf"(?m)^  {key}: .*(\n    .*)*$", line, text, count=1)
    text = _TOPICS.sub(f"    - arn: {topic}", text, count=1)
    text = re.sub(r"(?m)^  buckets: .*$", f"  buckets: [{bucket}]", text, count=1)
    # The new dataset is not retired, and `mirrors` has addresses of another bucket's copies.
    text = re.sub(r"(?m)^  (?:status|retired): .*\n(?:    .*\n)*", "", text)
    text = re.sub(r"(?m)^  mirrors:\n(?:    .*\n)+", "", text)
    # The new dataset's keys have other values.
    text = re.sub(r"(?m)^  key_values:\n(?:    .*\n)+", "", text)
    # The variation of the new dataset's sizes is not known yet.
    text = re.sub(r"(?m)^  peers: .*\n", "", text)
    # `coverage` is left out because the arrivals are not known yet, `virtual` because the fields of a store are not.
    text = re.sub(r"(?ms)^(?:coverage|virtual):\n.*?(?=^\S|\Z)", "", text)
    return _HEAD.format(like=like, bucket=bucket) + text
