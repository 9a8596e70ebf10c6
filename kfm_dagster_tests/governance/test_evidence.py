"""Each quarantined unit has a case with complete evidence, without restricted content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import obstore
import pytest
from obstore.exceptions import GenericError

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest import evidence, evidence_bundle
from kfm_dagster.ingest.evidence import EDGE_BYTES, EvidenceCollector, read_evidence
from kfm_dagster.ingest.evidence_bundle import redacted
from kfm_dagster.ingest.nodes import IntegrityCheck, Settle, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState, QuarantineCase, QuarantineCases
from kfm_dagster.redaction import redact
from kfm_dagster_tests.governance.conftest import cases_of, release
from kfm_dagster_tests.integration import chain, traces
from kfm_dagster_tests.ledger.bench import with_retry
from kfm_dagster_tests.transactions import own_tx

JANE = Decision(actor="jane", reason="looked at it", change_ref="CHG-7")
MUST_NOT_BE_CALLED, DYING = Mock(side_effect=AssertionError), Mock(side_effect=chain.CrashError)


def bundles(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Return the evidence of every open case by object; each case must have evidence."""
    return {case.object_uri: bundle_of(pipeline, case) for case in cases_of(pipeline).find(CaseState.OPEN)}


def bundle_of(pipeline: Pipeline, case: QuarantineCase) -> dict[str, Any]:
    return read_evidence(pipeline.store, case.evidence_file)


def quarantine_by_hand(pipeline: Pipeline, *items: chain.StoredObject) -> None:
    chain.deliver_each(pipeline, *items)
    records = traces.records(pipeline)
    wal_ids = [records[item.uri].wal_id for item in items]
    own_tx(pipeline.ledger).quarantine(wal_ids, reason_code="looked_odd", decision=JANE)


@pytest.mark.clause("BEY-06", "WSM-14")
def test_evidence_of_units_without_attempts_left_has_the_full_explanation(pipeline: Pipeline) -> None:
    first, second, third = chain.volumes(3)
    sound, truncated, gone = first, chain.truncated(second), chain.missing(third)
    chain.deliver_each(pipeline, sound, truncated, gone)
    chain.work_until_done(pipeline)

    by_object = bundles(pipeline)
    records = traces.records(pipeline)
    assert set(by_object) == {truncated.uri, gone.uri}
    for item, code in ((truncated, "size_mismatch"), (gone, "missing_object")):
        record, bundle = records[item.uri], by_object[item.uri]
        assert (bundle["wal_id"], bundle["quarantined_version"]) == (record.wal_id, record.version)
        assert (bundle["reason"], bundle["error"]["code"]) == ("attempts_exhausted", code)
        assert bundle["error"]["message"] == record.last_error_message
        assert (bundle["operator"], bundle["attempts"]) == (IntegrityCheck.operator, 3)
        assert bundle["run_id"] == record.ingest_run_id
        assert bundle["code_version"]
        assert bundle["announced"] == {
            "version": item.event().etag,
            "size": len(item.announced),
            "sequencer": record.sequencer,
            "event_time": "2025-04-03T00:00:00.000000Z",
        }
        moves = [(entry["from"], entry["to"]) for entry in bundle["history"]]
        assert moves[-2:] == [("in_progress", "failed"), ("failed", "quarantined")]
        assert len(bundle["history"]) == record.version
        message = bundle["message"]["body"]["Message"]["Records"][0]["s3"]
        assert (message["object"]["key"], message["bucket"]["name"]) == (item.key, item.bucket)
    assert by_object[truncated.uri]["found"] | {"last_modified": None} == {
        "state": "present",
        "why": None,
        "size": len(truncated.stored),
        "version": hashlib.md5(truncated.stored).hexdigest(),
        "content_type": None,
        "last_modified": None,
        "first_hex": truncated.stored[:EDGE_BYTES].hex(),
        "last_hex": truncated.stored[-EDGE_BYTES:].hex(),
    }
    assert by_object[gone.uri]["found"]["state"] == "absent"
    assert by_object[gone.uri]["found"]["why"]
    assert by_object[gone.uri]["found"]["size"] is None


@pytest.mark.clause("BEY-06")
def test_evidence_has_both_ends_of_an_object_and_no_byte_twice(pipeline: Pipeline) -> None:
    sizes = (0, 1, EDGE_BYTES - 1, EDGE_BYTES, EDGE_BYTES + 1, 2 * EDGE_BYTES, 2 * EDGE_BYTES + 1)
    contents = [bytes(number % 251 for number in range(size)) for size in sizes]
    items = [chain.replaced(item, content) for item, content in zip(chain.volumes(len(sizes)), contents, strict=True)]
    quarantine_by_hand(pipeline, *items)
    assert EvidenceCollector(pipeline).collect() == len(items)
    by_object = bundles(pipeline)
    for item, content in zip(items, contents, strict=True):
        ends = by_object[item.uri]["found"]
        assert bytes.fromhex(ends["first_hex"]) == content[:EDGE_BYTES]
        assert bytes.fromhex(ends["last_hex"]) == content[max(EDGE_BYTES, len(content) - EDGE_BYTES) :]


@pytest.mark.clause("BEY-06")
def test_evidence_of_a_superseded_unit_does_not_read_the_object(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = chain.volumes(1)[0]
    new = chain.replaced(old, old.announced + b"more")
    chain.put(objects, [new])
    chain.notify_each(pipeline, old)
    later = new.event(event_time=new.event().event_time + timedelta(hours=1))
    chain.take(pipeline, chain.announce([later], registry=pipeline.registry))
    monkeypatch.setattr(type(pipeline.objects), "open", MUST_NOT_BE_CALLED)
    assert EvidenceCollector(pipeline).collect() == 1
    [bundle] = bundles(pipeline).values()
    assert (bundle["reason"], bundle["found"]["state"]) == ("superseded", "overwritten")
    assert bundle["message"]["body"]["Message"]["Records"][0]["s3"]["object"]["key"] == old.key


@pytest.mark.clause("BEY-06")
@pytest.mark.parametrize("why", ["restricted dataset", "indigenous data", "sensitive areas"])
def test_evidence_has_no_content_that_governance_withholds(why: str, pipeline: Pipeline, objects: Path) -> None:
    item = chain.volumes(1)[0]
    chain.put(objects, [item])
    if why == "sensitive areas":
        # While areas are declared, any object may lie in one.
        pipeline.settings = pipeline.settings.model_copy(update={"sensitive_areas": Path("areas.geojson")})
    else:
        change = {"sensitivity": "restricted"} if why == "restricted dataset" else {"indigenous_data_flag": True}
        pipeline.registry = ContractRegistry.of(
            contract.model_copy(update={"governance": contract.governance.model_copy(update=change)})
            for contract in pipeline.registry
        )
    quarantine_by_hand(pipeline, item)
    EvidenceCollector(pipeline).collect()
    [bundle] = bundles(pipeline).values()
    assert (bundle["found"]["state"], bundle["found"]["size"]) == ("withheld", len(item.announced))
    assert (bundle["found"]["first_hex"], bundle["found"]["last_hex"]) == ("", "")


SECRETS = {
    "UnsubscribeURL": "https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe&SubscriptionArn=arn:aws:sns:x:abcdef",
    "Signature": "EXAMPLElDMXvB8r9R83tGoNn0ecwd5UjllzsvSvbItzfaMpN2nk5HVSw7XnOn/49IkxDKz8YrlH2qJXj2iZB0Zo2O71c4qQk1fMU",
    "note": "mail jane.doe@noaa.gov, see https://b.s3.amazonaws.com/k?X-Amz-Signature=deadbeef&X-Amz-Expires=60",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
LEAKS = ("Action=Unsubscribe", "EXAMPLEl", "jane.doe", "deadbeef", "wJalr")


@pytest.mark.clause("BEY-06")
def test_evidence_has_no_secrets_of_the_message_at_any_depth(pipeline: Pipeline, objects: Path) -> None:
    item = chain.volumes(1)[0]
    message = chain.announce([item.event()], registry=pipeline.registry)
    body = json.loads(message.body)
    inner = json.loads(body["Message"])
    inner["Records"][0]["responseElements"] = SECRETS | {"deeper": json.dumps(SECRETS)}
    body = body | SECRETS | {"Message": json.dumps(inner)}
    chain.put(objects, [item])
    chain.take(pipeline, replace(message, body=json.dumps(body)))
    [record] = own_tx(pipeline.ledger).find()
    own_tx(pipeline.ledger).quarantine([record.wal_id], reason_code="looked_odd", decision=JANE)
    EvidenceCollector(pipeline).collect()
    [bundle] = bundles(pipeline).values()
    text = json.dumps(bundle)
    assert [leak for leak in LEAKS if leak in text] == []
    stored = bundle["message"]["body"]
    assert (stored["MessageId"], stored["TopicArn"]) == (body["MessageId"], body["TopicArn"])
    assert stored["Message"]["Records"][0]["s3"]["object"]["key"] == item.key


def test_deeply_nested_json_is_truncated_and_not_walked_completely() -> None:
    value: Any = "secret"
    for _ in range(500):
        value = [value]
    assert "secret" not in json.dumps(redacted(value))


@pytest.mark.clause("BEY-06", "SEC-12")
@pytest.mark.parametrize("enveloped", [True, False], ids=["SNS", "raw delivery"])
def test_evidence_has_only_the_unit_s_record_of_a_message(enveloped: bool, pipeline: Pipeline, objects: Path) -> None:
    items = chain.volumes(20)
    older = chain.replaced(items[0], b"another version")
    chain.put(objects, items)
    message = chain.announce([older.event(), *(item.event() for item in items)], registry=pipeline.registry)
    chain.take(pipeline, message if enveloped else replace(message, body=json.loads(message.body)["Message"]))
    records = {record.object_version: record for record in own_tx(pipeline.ledger).find()}
    units = [records[item.event().etag] for item in (older, items[0], items[-1])]
    own_tx(pipeline.ledger).quarantine([unit.wal_id for unit in units], reason_code="looked_odd", decision=JANE)
    EvidenceCollector(pipeline).collect()
    for unit, item in zip(units, (older, items[0], items[-1]), strict=True):
        case = next(case for case in own_tx(cases_of(pipeline)).of(unit.wal_id) if case.reason == "looked_odd")
        body = bundle_of(pipeline, case)["message"]["body"]
        [own] = (body["Message"] if enveloped else body)["Records"]
        assert (own["s3"]["object"]["key"], own["s3"]["object"]["eTag"]) == (item.key, item.event().etag)


@pytest.mark.clause("SEC-12")
@pytest.mark.parametrize(
    "value",
    [
        {f"name {number}": "value" for number in range(50_000)},
        [["value"]] * 50_000,
        {"a" * 1_000_000: 1},
        json.dumps([json.dumps(["a@b.c " * 50_000])] * 3),
        ["-a" * 10_000] * 100,
    ],
    ids=["names", "entries", "a long name", "JSON in JSON", "long texts"],
)
def test_only_stored_text_is_redacted(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(text: str, limit: int = 500) -> str:
        lengths.append(min(len(text), 20_000))  # `redact` examines at most this many
        return redact(text, limit)

    monkeypatch.setattr(evidence_bundle, "redact", counted)
    assert len(json.dumps(redacted(value))) <= 4 * evidence_bundle.MAX_BODY_CHARACTERS
    assert sum(lengths) <= 4 * evidence_bundle.MAX_BODY_CHARACTERS + 3 * 20_000


@pytest.mark.clause("BEY-06")
@pytest.mark.parametrize("failpoint", ["before the bundle is stored", "before the case names it", "settle committed"])
def test_a_crash_leaves_no_partial_evidence_and_the_next_collector_continues(
    failpoint: str, pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = chain.truncated(chain.volumes(1)[0])
    chain.put(objects, [item])
    if failpoint == "settle committed":
        pipeline.registry = with_retry(pipeline.registry, max_attempts=1)
        chain.notify_each(pipeline, item)
        with pytest.raises(chain.CrashError):
            chain.run_chain(
                pipeline, "nexrad-l2", chain.PARTITION, "run-1", Source.LEDGER,
                dies_at=chain.Failpoint(operator=Settle.operator, point="committed"),
            )  # fmt: skip
    else:
        quarantine_by_hand(pipeline, item)
        with monkeypatch.context() as patch:
            if failpoint == "before the bundle is stored":
                patch.setattr(evidence.Artifacts, "put", DYING)
            else:
                patch.setattr(QuarantineCases, "attach", DYING)
            with pytest.raises(chain.CrashError):
                EvidenceCollector(pipeline).collect()
    [case] = cases_of(pipeline).find(CaseState.OPEN)
    assert (case.evidence_file, case.collected_at) == (None, None)
    assert EvidenceCollector(pipeline).collect() == 1
    [bundle] = bundles(pipeline).values()
    assert bundle["found"]["state"] == "present"
    assert EvidenceCollector(pipeline).collect() == 0
    stored = [path for path in (Path(pipeline.settings.storage) / "evidence").rglob("*") if path.is_file()]
    # The file has the name of the file that the crash left, because the facts are equal.
    assert len(stored) == 1


@pytest.mark.clause("SEC-09", "SEC-12")
def test_evidence_that_fails_for_one_case_is_replaced_by_a_note(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, *others = chain.volumes(3)
    quarantine_by_hand(pipeline, odd, *others)
    look = evidence.bundle_of

    def of_all_but_one(case: Any, record: Any, history: Any, *, observed: Any, message: Any) -> bytes:
        if record.object_uri == odd.uri and message is not None:
            raise OverflowError
        return look(case, record, history, observed=observed, message=message)

    monkeypatch.setattr(evidence, "bundle_of", of_all_but_one)
    assert EvidenceCollector(pipeline).collect() == 3
    by_object = bundles(pipeline)
    assert (by_object[odd.uri]["found"]["state"], by_object[odd.uri]["message"]) == ("unreadable", None)
    assert "OverflowError" in by_object[odd.uri]["found"]["why"]
    assert {by_object[item.uri]["found"]["state"] for item in others} == {"present"}


@pytest.mark.clause("BEY-06")
def test_concurrent_collectors_give_a_case_one_bundle(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    item = chain.volumes(1)[0]
    quarantine_by_hand(pipeline, item)
    second = cases_of(pipeline)
    [due] = second.due(limit=5)
    assert EvidenceCollector(pipeline).collect() == 1
    [case] = own_tx(second).of(due.wal_id)
    late = type(case.evidence_file)(uri=f"evidence/{'0' * 2}/{'0' * 64}.json", sha256="0" * 64)
    assert second.attach([(due, late)]) == 0
    assert own_tx(second).of(due.wal_id) == [case]
    # Without a due case the collector reads nothing more.
    for name in ("histories", "messages", "attach"):
        monkeypatch.setattr(QuarantineCases, name, MUST_NOT_BE_CALLED)
    assert EvidenceCollector(pipeline).collect() == 0


def test_an_unreachable_store_leaves_the_case_to_the_next_collector(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = chain.volumes(1)[0]
    quarantine_by_hand(pipeline, item)
    # The artifact store refuses writes; the landing zone refuses reads.
    for request in ("put", "get"):
        with monkeypatch.context() as patch:
            patch.setattr(obstore, request, Mock(side_effect=GenericError("no answer")))
            assert EvidenceCollector(pipeline).collect() == 0, request
    assert EvidenceCollector(pipeline).collect() == 1


def test_a_lost_message_is_marked_as_lost_and_a_listed_unit_has_no_message(pipeline: Pipeline, objects: Path) -> None:
    item, listed = chain.volumes(2)
    quarantine_by_hand(pipeline, chain.missing(item))
    for path in (Path(pipeline.settings.storage) / "landing").rglob("*.gz"):
        path.unlink()
    chain.put(objects, [chain.replaced(listed, b"")])
    chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, "run-1", Source.LISTING)
    chain.work_until_done(pipeline)
    collected = bundles(pipeline)
    assert collected[item.uri]["message"]["body"] is None
    assert "a landed batch is gone" in collected[item.uri]["message"]["why_no_body"]
    assert (collected[listed.uri]["message"], collected[listed.uri]["error"]["code"]) == (None, "size_zero")


@pytest.mark.clause("BEY-06")
def test_a_unit_released_before_collection_still_gets_its_evidence(pipeline: Pipeline) -> None:
    item = chain.volumes(1)[0]
    quarantine_by_hand(pipeline, item)
    [record] = own_tx(pipeline.ledger).find()
    assert release(pipeline, record.wal_id, record.version, JANE) == {record.wal_id}
    chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, "run-1", Source.LEDGER)
    EvidenceCollector(pipeline).collect()
    [case] = own_tx(cases_of(pipeline)).of(record.wal_id)
    assert (case.state, case.closed_by, case.change_ref) == (CaseState.RELEASED, "jane", "CHG-7")
    bundle = bundle_of(pipeline, case)
    # The record at its quarantine, not the current record.
    assert (bundle["attempts"], len(bundle["history"])) == (0, record.version)
