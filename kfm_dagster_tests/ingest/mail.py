"""Mail: seeded batches of valid, broken and hostile messages, as a queue can deliver them.

    python -m kfm_dagster_tests.ingest.mail --messages N --database sqlite|postgresql [--seed N]

The program takes in up to ten messages at a time, and checks after each batch that every message is accounted for and
every good unit is pending. Belongs here: random messages, and the checks after their intake. Does not belong here: the
numbers of messages (`test_mail.py`, `benchmarks/soak.py`).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from benchmarks.postgres import embedded_postgres
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.identity import wal_id
from kfm_dagster.ingest.intake import record
from kfm_dagster.ingest.kill_switch_policy import ALL_ON
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster_tests import databases
from kfm_dagster_tests.integration.chain import open_pipeline
from kfm_dagster_tests.transactions import own_tx

BUCKET = "unidata-nexrad-level2"
HRRR = "noaa-hrrr-bdp-pds"
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
MAX_BATCH = 10

TEXTS = (
    "", " ", "\0", "a\0b", "\ud800", "\udfff\ud800", "\u202e", "\ufffd", "é" * 300, "x" * 5_000, "\n\r\t", "'; DROP x",
    "%00", "%ff%fe", "../../etc/passwd", "\\u0000", "\\\\u0000", "\x1b[31m", "🛰️", "{}", "null", "s3://", "0" * 65,
)  # fmt: skip
TIMES = (
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "0999-12-31T23:59:59Z", "1582-10-10T00:00:00Z",
    "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59", "2500-12-31T23:59:59Z", "1990-12-31T00:00:00Z",
    "2025-02-30T00:00:00Z", "2025-01-01T24:00:00Z", "2025-01-01", "yesterday", "1e999", "-2025-01-01T00:00:00Z",
)  # fmt: skip
DAYS = ("00010101", "00011231", "09991231", "15821231", "19901231", "25001231", "99991231", "20250230", "20250101")
NUMBERS = (0, -1, 2**31, 2**53, 2**63 - 1, 2**63, 10**30, 0.5, 1e308, True)
VALUES = (None, [], {}, [[]], {"": None}, *TEXTS, *TIMES, *NUMBERS)
BODIES = (
    "", "{", "null", "0", '"text"', "[]", "[" * 2_000, '{"Records":' + "[" * 1_500, '{"Records":[]}', '{"Records":{}}',
    '{"Type":"SubscriptionConfirmation"}', '{"Type":"Notification"}', '{"Event":"s3:TestEvent"}', "\0", "\ud800",
    '{"Records":[0,null,"\\u0000",{"s3":0}]}', "<xml/>", "NaN", '{"a":' * 600 + "1" + "}" * 600,
)  # fmt: skip


@dataclass
class Mail:
    """A source of batches. Units of `good` must be pending after intake of their batch."""

    rng: random.Random
    topic: str
    good: set[WalId] = field(default_factory=set)
    _number: int = 0
    _messages: int = 0

    def batch(self) -> list[SqsMessage]:
        """Draw one to ten messages; sometimes one is repeated."""
        messages = [self._message() for _ in range(self.rng.randint(1, MAX_BATCH))]
        if len(messages) < MAX_BATCH and self.rng.random() < 0.05:
            messages.append(self.rng.choice(messages))
        return messages

    def _message(self) -> SqsMessage:
        kind = self.rng.choice((self._valid, self._valid, self._mixed, self._broken, self._hostile))
        self._messages += 1
        name = f"m{self._messages}"
        if self.rng.random() < 0.02:
            name += self.rng.choice(TEXTS)
        return SqsMessage(message_id=name, body=kind(), receipt_handle=f"r{self._messages}", receive_count=1)

    def _valid(self) -> str:
        return self._wrapped([self._good() for _ in range(self.rng.choice((1, 1, 1, 2, 4)))])

    def _mixed(self) -> str:
        """Return good records beside hostile records, sometimes with a `Subject` that no column can store."""
        records = [self._good(), *(self._bad() for _ in range(self.rng.randint(1, 4)))]
        self.rng.shuffle(records)
        odd = {} if self.rng.random() < 0.5 else {"Subject": self.rng.choice(VALUES)}
        return self._wrapped(records, **odd)

    def _broken(self) -> str:
        """Return an invalid or truncated body."""
        if self.rng.random() < 0.5:
            return self.rng.choice(BODIES)
        body = self._wrapped([self._bad()])
        return body[: self.rng.randrange(len(body))]

    def _hostile(self) -> str:
        """Replace any field of the SNS envelope; the units of this message need not be recorded."""
        field_name = self.rng.choice(("Type", "MessageId", "TopicArn", "Message", "Timestamp", "Subject"))
        outer = json.loads(self._enveloped([self._bad()]))
        outer[field_name] = self.rng.choice(VALUES)
        if isinstance(outer["Message"], str) and self.rng.random() < 0.3:
            outer["Message"] = self.rng.choice(BODIES)
        return json.dumps(outer)

    def _wrapped(self, records: Sequence[Any], **changes: Any) -> str:
        if not changes and self.rng.random() < 0.5:
            return _text({"Records": records})
        return self._enveloped(records, **changes)

    def _enveloped(self, records: Sequence[Any], **changes: Any) -> str:
        outer = {
            "Type": "Notification",
            "MessageId": f"sns-{self._messages}" + (self.rng.choice(TEXTS) if self.rng.random() < 0.1 else ""),
            "TopicArn": self.topic,
            "Subject": "Amazon S3 Notification",
            "Timestamp": "2025-06-01T00:00:00.000Z",
            "Message": _text({"Records": records}),
        }
        return _text(outer | changes)

    def _good(self) -> dict[str, Any]:
        """Return a record of a new volume or of one announced before."""
        self._number += 1
        number = self._number if self.rng.random() < 0.9 else self.rng.randint(1, self._number)
        at = FIRST + timedelta(seconds=number)
        key = f"{at:%Y/%m/%d}/KTLX/KTLX{at:%Y%m%d_%H%M%S}_V06"
        etag = f"{number:032x}"
        self.good.add(
            wal_id(dataset="nexrad-l2", object_uri=f"s3://{BUCKET}/{key}", time_range_start=at, object_version=etag)
        )
        return _record(BUCKET, key, eTag=etag, size=number, sequencer=f"{number:016X}")

    def _bad(self) -> Any:
        """Return a record with a fault; some of these records give a unit nevertheless."""
        return self.rng.choice((self._bad_field, self._bad_key, self._no_record))()

    def _no_record(self) -> Any:
        return self.rng.choice(VALUES)

    def _bad_key(self) -> Any:
        day = self.rng.choice(DAYS)
        key = f"hrrr.{day}/conus/hrrr.t{self.rng.randint(0, 24):02}z.wrfsfcf{self.rng.randint(0, 99):02}.grib2"
        changed = self.rng.choice((key, key + ".idx", key + quote_plus(self.rng.choice(TEXTS), errors="replace")))
        return _record(HRRR, changed, eTag="0" * 32)

    def _bad_field(self) -> Any:
        record = _record(HRRR, "hrrr.20250101/conus/hrrr.t00z.wrfsfcf00.grib2", eTag=f"{self.rng.getrandbits(60):x}")
        place = self.rng.choice((record, record["s3"], record["s3"]["bucket"], record["s3"]["object"]))
        name = self.rng.choice((*place, "size", "sequencer", "eTag", "versionId"))
        place[name] = self.rng.choice(VALUES)
        return record


def _text(value: Any) -> str:
    # Keep lone surrogates unescaped, because parsers disagree on them as escapes (RFC 8259, 8.2).
    return json.dumps(value, ensure_ascii=False)


def _record(bucket: str, key: str, **described: Any) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventTime": "2025-06-01T00:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": {"key": key, **described}},
    }


def take_in_and_check(pipeline: Pipeline, mail: Mail) -> int:
    """Take one batch in, assert that nothing is lost, and return its number of messages."""
    earlier = mail.good.copy()
    batch = mail.batch()
    report = record(pipeline, batch, ALL_ON)
    assert report.received == len(batch)
    ids = {message.message_id for message in batch}
    states = pipeline.deliveries.states(ids)
    assert states.keys() == ids, "a message is not recorded"
    assert set(states.values()) <= {DeliveryState.IN_FLIGHT, DeliveryState.REJECTED, DeliveryState.IGNORED}
    fresh = mail.good - earlier
    statuses = own_tx(pipeline.ledger).statuses(fresh)
    assert statuses == dict.fromkeys(fresh, Status.PENDING), "a good unit is not pending"
    return len(batch)


def take_in_mail(pipeline: Pipeline, *, messages: int, seed: int, say: Callable[[int], None] = lambda _: None) -> int:
    """Take in and check batches until `messages` messages are taken; return their number."""
    topic = pipeline.registry["nexrad-l2"].notifications.topics[0].arn
    mail = Mail(rng=random.Random(seed), topic=topic)
    taken = batches = 0
    while taken < messages:
        batches += 1
        try:
            taken += take_in_and_check(pipeline, mail)
        except Exception as error:
            error.add_note(f"seed {seed}, batch {batches}")
            raise
        if batches % 1_000 == 0:
            say(taken)
    balance = pipeline.deliveries.conservation()
    assert (balance.residual_units, balance.residual_messages) == (0, 0)
    assert own_tx(pipeline.ledger).statuses(mail.good) == dict.fromkeys(mail.good, Status.PENDING)
    return taken


def main() -> None:
    """Take in as much mail as the options demand, in ledgers of bounded size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first ledger; each further ledger adds 1")
    arguments = parser.parse_args()
    begun, taken, seed = time.process_time(), 0, arguments.seed
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kfm-mail-")))
        folder.chmod(0o755)
        server = stack.enter_context(embedded_postgres(folder / "data")) if arguments.database == "postgresql" else None
        while taken < arguments.messages:
            with ExitStack() as ledger:
                home = Path(ledger.enter_context(tempfile.TemporaryDirectory(dir=folder)))
                url = ledger.enter_context(databases.created(server)) if server else ""
                pipeline = open_pipeline(home, home, url=url, sns_verify="off")  # these messages are unsigned
                ledger.callback(pipeline.close)
                taken += take_in_mail(pipeline, messages=min(50_000, arguments.messages - taken), seed=seed)
            seed += 1
    print(  # noqa: T201
        f"{taken} messages on {arguments.database}, seeds {arguments.seed} to {seed - 1}: every one is accounted for, "
        f"every good unit is pending; {time.process_time() - begun:.0f} s CPU"
    )


if __name__ == "__main__":
    main()
