"""Rehearsal: run an object through a contract's whole chain, in a temporary deployment.

Readers, gates and the Item's validation are those of an ingest, so the findings are the same. Does not belong here:
errors that the contract has without any object (`contracts/loader.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import Severity
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader, KeyMatch
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ContractError
from kfm_dagster.ingest.chain import run_chain
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.events import unlogged
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import FeedKind, Settings
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.failure import StageFailedError

LEFT_OUT = "storage.listing_sets: a backfill does not look for this object; it is ingested when it is announced"

OF_THE_DEPLOYMENT = frozenset(
    {"env", "configs_dir", "image_digest", "masking_salt", "sensitive_areas", "signing_key", "signing_passphrase"}
)
"""Settings that a rehearsal shares with the deployment: the pipeline card, and settings that change Items or receipts.
Other settings have their defaults, so that no store, follower or channel of the deployment is written to."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The result for an object: its status, the Item if any, findings, and suspicions."""

    uri: str
    status: Status | None
    item: Mapping[str, Any] | None
    findings: tuple[str, ...]
    suspect: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Whether an ingest would give a valid Item without findings of the gates."""
        return self.status is Status.SUCCEEDED and not self.findings


def rehearse(registry: ContractRegistry, dataset: str, sample: Path) -> Rehearsal:
    """Ingest a file DIR/BUCKET/KEY and its sidecars by a dataset's contract; leave no files.

    An object outside the contract's listing sets is ingested like an announced object, and reported as suspect. Raises
    ContractError for a file that the contract does not name.
    """
    contract = registry[dataset]
    bucket, key = _address(contract, sample)
    match = _understood(contract, bucket, key, datetime.fromtimestamp(sample.stat().st_mtime, UTC))
    storage = contract.storage
    left_out = bool(storage.listing_sets) and not key.startswith(tuple(storage.day_prefixes(match.start.date())))
    if left_out:
        # A listing of this object only.
        storage = storage.model_copy(update={"listing": ["{key}"], "listing_sets": {"key": [key]}})
        contract = contract.model_copy(update={"storage": storage})
        registry = ContractRegistry.of([each for each in registry if each.id != dataset] + [contract])
    with TemporaryDirectory(prefix="kfm-rehearsal-") as folder:
        root = Path(folder)
        for suffix in ("", *(sidecar.suffix for sidecar in contract.storage.sidecars)):
            _place(Path(f"{sample}{suffix}"), root / "objects" / bucket / f"{key}{suffix}")
        defaults = {
            name: field.get_default(call_default_factory=True)
            for name, field in Settings.model_fields.items()
            if name not in OF_THE_DEPLOYMENT
        }
        temporary = {"home": root / "home", "object_root": root / "objects", "feed": FeedKind.SAMPLE}
        settings = Settings.load(**{**defaults, **temporary})
        pipeline = Pipeline.open(settings)
        try:
            pipeline.registry = registry
            with unlogged():
                rehearsal = _rehearsed(pipeline, contract, f"s3://{bucket}/{key}", match)
            return replace(rehearsal, suspect=(*rehearsal.suspect, LEFT_OUT)) if left_out else rehearsal
        finally:
            pipeline.close()


def _rehearsed(pipeline: Pipeline, contract: DatasetContract, uri: str, match: KeyMatch) -> Rehearsal:
    first = MessageParse(
        pipeline=pipeline,
        dataset=contract.id,
        partition=match.start.date().isoformat(),
        run_id=str(uuid.uuid4()),
        source=Source.LISTING,
        limit=1,
    )
    try:
        outputs = run_chain(first)
    except StageFailedError as error:
        failing = error.decision.failing if error.decision else ()
        findings = [f"{verdict.gate}: {finding.what}" for verdict in failing for finding in verdict.findings]
        return Rehearsal(uri=uri, status=None, item=None, findings=tuple(findings or [str(error)]), suspect=())
    if not outputs[-1].envelopes:
        prefixes = ", ".join(islice(contract.storage.day_prefixes(match.start.date()), 5))
        missing = f"storage.listing: no prefix lists {uri}, so that no backfill would find it; listed were {prefixes}"
        return Rehearsal(uri=uri, status=None, item=None, findings=(missing,), suspect=())
    (unit,) = outputs[-1].envelopes
    with pipeline.database.snapshot() as tx:
        record = pipeline.ledger.get(unit.wal_id, tx=tx)
    item = _item(Path(pipeline.settings.catalog), unit)
    properties = item["properties"] if item is not None else {}
    return Rehearsal(
        uri=uri,
        status=record.status if record else None,
        item=item,
        findings=(*_issues(unit, Severity.FAILED), *_gates(outputs)),
        suspect=(
            *_issues(unit, Severity.SUSPECT),
            *_ambiguities(contract, uri.split("/", 3)[3], match),
            *(_lacking(name, properties) for name in contract.stac.summaries if item and name not in properties),
        ),
    )


def _ambiguities(contract: DatasetContract, key: str, match: KeyMatch) -> Iterator[str]:
    """Yield the key's groups that the Item's id lacks, and the id's gaps from empty groups."""
    stac = contract.stac
    fields = re.findall(r"{(\w+)}", stac.item_id)
    spans = _spans(contract.storage.key_grammar.pattern, key, match.groups)
    in_id = [span for name in fields for span in spans.get(name, ())]
    for name, occurrences in spans.items():
        is_in_id = any(start <= first and last <= end for first, last in occurrences for start, end in in_id)
        # A short text, such as 12, may be in the id by chance; a longer one is there because another group repeats it.
        is_repeated = len(match.groups[name]) > 2 and match.groups[name] in match.item_id
        if name != stac.precedence and not is_in_id and not is_repeated:
            yield f"stac.item_id: it lacks {{{name}}}: objects whose keys differ only there share an Item"
    if re.search(r"[._-]{2}|[._-]$", match.item_id):
        empty = ", ".join(name for name in fields if not match.groups.get(name))
        yield f"stac.item_id: {match.item_id} has a gap, because this key has no {empty}"


def _spans(pattern: str, key: str, groups: Mapping[str, str]) -> Mapping[str, list[tuple[int, int]]]:
    """Return the spans of each non-empty group in a key, also where the pattern repeats it."""
    references: dict[str, str] = {}

    def as_group(reference: re.Match[str]) -> str:
        """Replace a back-reference by a group of the text that the reference repeats."""
        references[alias := f"_reference_{len(references)}"] = reference[1]
        return f"(?P<{alias}>{re.escape(groups.get(reference[1], ''))})"

    spans: dict[str, list[tuple[int, int]]] = {}
    if match := re.fullmatch(re.sub(r"\(\?P=(\w+)\)", as_group, pattern), key, re.ASCII):
        for name in match.re.groupindex:
            if match[name]:
                spans.setdefault(references.get(name, name), []).append(match.span(name))
    return spans


def _lacking(name: str, properties: Mapping[str, Any]) -> str:
    """Return the finding that the Item lacks a summarised property; hint at another prefix."""
    alike = [other for other in properties if other.partition(":")[2] == name.partition(":")[2]]
    hint = f", but {alike[0]}: storage.key_grammar.implied.prefix sets the prefix" if alike else ""
    return f"stac.summaries: the Item has no {name}{hint}"


def _address(contract: DatasetContract, sample: Path) -> tuple[str, str]:
    if not sample.is_file():
        raise ContractError(
            "the sample does not exist",
            observed=sample,
            expected="a file DIR/BUCKET/KEY",
            next_step="fetch an object: aws s3 cp --no-sign-request s3://BUCKET/KEY DIR/BUCKET/KEY "
            f"(BUCKET: {', '.join(contract.storage.buckets)})",
        )
    parts = sample.absolute().parts
    for bucket in contract.storage.buckets:
        if bucket in parts[:-1]:
            index = parts.index(bucket)
            return bucket, "/".join(parts[index + 1 :])
    raise ContractError(
        "the sample is not below a bucket of the contract",
        observed=sample,
        expected=f"DIR/BUCKET/KEY with {' or '.join(contract.storage.buckets)}",
        next_step="put it there under its own key, or correct storage.buckets",
    )


def _understood(contract: DatasetContract, bucket: str, key: str, written: datetime) -> KeyMatch:
    try:
        match = KeyGrammarReader(contract).match(key, written)
    except InvalidKeyTimeError as error:
        raise ContractError(
            "the key has no time of the dataset",
            observed=error,
            expected="times in the key as storage.key_grammar describes them, not before storage.first_day",
        ) from None
    if match is None:
        raise ContractError(
            "the key matches no data key of the contract",
            observed=f"s3://{bucket}/{key}",
            expected=_wanted(contract.storage.key_grammar.pattern, key),
            next_step="correct storage.key_grammar.pattern, and with it prefixes, listing and stac.item_id",
        )
    return match


def _wanted(pattern: str, key: str) -> str:
    """Return where a key stops matching: after the pattern's longest valid, matching prefix."""
    for end in range(len(pattern), 0, -1):
        with suppress(re.error):
            if match := re.match(pattern[:end], key, re.ASCII):
                return f"{pattern[end:] or 'its end'} after {match[0]!r}; the whole pattern is {pattern}"
    return pattern


def _place(file: Path, target: Path) -> None:
    """Link a file to the path where it is read; copy it if the path is on another disk."""
    if not file.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


def _issues(unit: Envelope, severity: Severity) -> Iterator[str]:
    for section in (unit.integrity, unit.metadata, unit.stac, unit.provenance):
        for issue in section.issues if section else ():
            if issue.severity is severity:
                yield f"{issue.code}: {issue.message}"


def _gates(outputs: Sequence[StageBatch]) -> Iterator[str]:
    for output in outputs:
        for verdict in output.decision.verdicts if output.decision else ():
            yield from (f"{verdict.gate}: {finding.what}" for finding in verdict.findings)


def _item(catalog: Path, unit: Envelope) -> Mapping[str, Any] | None:
    if unit.stac is None or unit.stac.item_id is None:
        return None
    (file,) = catalog.rglob(f"{unit.stac.item_id}.json")
    item: Mapping[str, Any] = orjson.loads(file.read_bytes())
    return item
