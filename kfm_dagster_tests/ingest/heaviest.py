"""The largest messages that SQS delivers; one tick over such messages, measured in a process of its own.

    python -m kfm_dagster_tests.ingest.heaviest KIND HOME MESSAGES [DSN]

Prints the report, seconds and peak memory as JSON. Belongs here: the content of the messages. Does not belong
here: the limits of a tick over them (`test_heaviest.py`).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.notifications.fields import MAX_BODY_BYTES
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster_tests.integration.chain import FakeQueue, open_pipeline

BUCKET = "unidata-nexrad-level2"
START = datetime(2025, 4, 1, tzinfo=UTC)


def _record(key: str, described: str = "", bucket: str = BUCKET) -> str:
    return (
        '{"eventVersion":"2.1","eventTime":"2025-04-02T00:00:00Z","eventName":"ObjectCreated:Put",'
        f'"s3":{{"bucket":{{"name":"{bucket}"}},"object":{{"key":"{key}"{described}}}}}}}'
    )


def _volume(number: int) -> str:
    at = START + timedelta(seconds=number)
    return f"{at:%Y/%m/%d}/KTLX/KTLX{at:%Y%m%d_%H%M%S}_V06"


KINDS: dict[str, Callable[[int], str]] = {
    "numbers": lambda _: "0",
    "empty": lambda _: "{}",
    "foreign": lambda number: f'{{"s3":{{"bucket":{{"name":"b{number:x}"}},"object":{{"key":"k"}}}}}}',
    "no-time": lambda number: _record(_volume(number)).replace("2025-04-02T00:00:00Z", f"{number}"),
    "units": lambda number: _record(_volume(number)),
    "versions": lambda number: _record(_volume(0), f',"eTag":"{number:x}","sequencer":"{number:x}"'),
    "versions-without-order": lambda number: _record(_volume(0), f',"eTag":"{number:x}"'),
    "one-object": lambda _: _record(_volume(0)),
    "sidecars": lambda number: _record(f"hrrr.20250402/conus/hrrr.t{number % 24:02}z.wrfsfcf00.grib2.idx", "",
                                       "noaa-hrrr-bdp-pds"),
    "escapes": lambda _: '"\\u0000"',
}  # fmt: skip
"""By kind: a function that returns the n-th record of a message."""


def heaviest(kind: str, messages: int) -> Iterator[SqsMessage]:
    """Yield messages of 1 MiB with as many records of a kind as fit."""
    numbers = count()
    for index in range(messages):
        records: list[str] = []
        room = MAX_BODY_BYTES - len('{"Records":[]}')
        while room > 0:
            record = KINDS[kind](next(numbers))
            room -= len(record) + 1
            if room >= 0:
                records.append(record)
        body = '{"Records":[' + ",".join(records) + "]}"
        yield SqsMessage(message_id=f"heavy-{index}", body=body, receipt_handle=f"r-{index}", receive_count=1)


def peak_mib() -> int:
    """Return this process's peak of resident memory; getrusage would include its parent's."""
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(kilobytes) // 1024


def main(kind: str, home: Path, messages: int, dsn: str = "") -> None:
    """Take the messages in, and print the measurements."""
    queue = FakeQueue(waiting=list(heaviest(kind, messages)))
    pipeline = open_pipeline(home, home, url=dsn, queue=queue, sns_verify="off")
    begun = time.monotonic()
    report = take_in(pipeline, ProcessState())
    balance = pipeline.deliveries.conservation()
    print(  # noqa: T201
        json.dumps(
            {
                "received": report.received,
                "created": report.created,
                "rejected": report.rejected,
                "ignored": report.ignored,
                "rows": len(pipeline.deliveries.rejected(limit=100_000)),
                "residual": balance.residual_units + balance.residual_messages,
                "seconds": round(time.monotonic() - begun, 1),
                "peak_mib": peak_mib(),
            }
        )
    )
    pipeline.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
