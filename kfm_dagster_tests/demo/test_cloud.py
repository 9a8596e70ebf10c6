"""The embedded cloud, its feed and the demo's samples, over loopback."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_plus

import psutil
import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.child_server import ChildServer
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed, FeedObject, ObjectEvent, StoredAs
from kfm_dagster.demo.sample_day import SERVED_AT, SHELL, sample_objects, serve_folder, serve_samples
from kfm_dagster.demo.samples.nexrad_chunks import BUCKET as CHUNKS_BUCKET
from kfm_dagster.demo.samples.nexrad_chunks import make_nexrad_chunks
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError, ExitCode
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.integration.chain import good, put

GOES_KEY = "ABI-L1b-RadM/2019/218/01/OR_ABI-L1b-RadM2-M6C03_G17_s20192180138575_e20192180139033_c20192180139080.nc"
NEXRAD_KEY = "2025/04/02/KTWX/KTWX20250402_220636_V06"
HRRR_KEY, SECOND_KEY = (f"hrrr.20250402/conus/hrrr.t12z.wrfsfcf{lead}.grib2" for lead in ("01", "02"))
ISD_KEY = "data/2020/720538-00164-2020.gz"


@pytest.fixture(scope="module")
def cloud(contracts: ContractRegistry) -> Iterator[EmbeddedCloud]:
    with EmbeddedCloud() as running:
        running.provision(contracts, visibility_timeout=30, max_receive_count=3)
        yield running


@pytest.fixture
def feed(cloud: EmbeddedCloud, contracts: ContractRegistry) -> Feed:
    drain(cloud)
    return Feed(cloud, contracts)


def drain(cloud: EmbeddedCloud) -> list[dict[str, Any]]:
    """Receive and delete every message of the queue."""
    sqs = cloud.client("sqs")
    url = sqs.get_queue_url(QueueName=cloud.primary_queue)["QueueUrl"]
    drained: list[dict[str, Any]] = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        drained += messages
        for message in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return drained


def records(message: dict[str, Any]) -> list[dict[str, Any]]:
    return json.loads(json.loads(message["Body"])["Message"])["Records"]


@pytest.mark.parametrize(
    ("bucket", "key", "topic"),
    [
        ("noaa-goes17", GOES_KEY, "arn:aws:sns:us-east-1:123901341784:NewGOES17Object"),
        ("unidata-nexrad-level2", NEXRAD_KEY, "arn:aws:sns:us-east-1:684042711724:NewNEXRADLevel2Archive"),
        ("noaa-hrrr-bdp-pds", HRRR_KEY + ".idx", "arn:aws:sns:us-east-1:123901341784:NewHRRRObject"),
        ("noaa-goes18", "ABI-Flood-Day/a b:c=d+e.nc", "arn:aws:sns:us-east-1:123901341784:NewGOES18Object"),
    ],
)
def test_an_object_is_announced_by_its_providers_topic(
    cloud: EmbeddedCloud, feed: Feed, bucket: str, key: str, topic: str
) -> None:
    event = feed.deliver(FeedObject(bucket=bucket, key=key, content=b"content"))
    assert feed.announce([event]) == 1

    [message] = drain(cloud)
    envelope = json.loads(message["Body"])
    assert (envelope["Type"], envelope["TopicArn"], envelope["Subject"]) == (
        "Notification",
        topic,
        "Amazon S3 Notification",
    )
    [record] = records(message)
    stored = cloud.client("s3").head_object(Bucket=bucket, Key=unquote_plus(record["s3"]["object"]["key"]))
    assert record["s3"]["object"]["size"] == stored["ContentLength"] == 7
    assert record["s3"]["object"]["eTag"] == stored["ETag"].strip('"') == hashlib.md5(b"content").hexdigest()
    with urllib.request.urlopen(f"{cloud.endpoint_url}/{bucket}/{quote(key)}") as anonymous:
        assert anonymous.read() == b"content"


def test_a_record_has_the_structure_of_a_captured_record(shared_data: Path) -> None:
    captured = json.loads((shared_data / "messages" / "goes17_sqs_body_2019.json").read_text(encoding="utf-8"))
    [theirs] = json.loads(captured["Message"])["Records"]
    bare = theirs["s3"]["object"]
    moment = datetime.fromisoformat(theirs["eventTime"])
    ours = ObjectEvent(
        bucket="noaa-goes17", key=bare["key"], size=bare["size"], etag=bare["eTag"], event_time=moment
    ).record()

    def shape(value: Any) -> Any:
        return {name: shape(part) for name, part in value.items()} if isinstance(value, dict) else type(value)

    assert shape(ours) == shape(theirs)
    same = ("eventVersion", "eventSource", "awsRegion", "eventTime", "eventName")
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert ours["s3"]["bucket"]["arn"] == theirs["s3"]["bucket"]["arn"]
    # The first ten digits of a sequencer are seconds; the captured number differs from the event's by at most one.
    assert abs(int(ours["s3"]["object"]["sequencer"][:10], 16) - int(bare["sequencer"][:10], 16)) <= 1


def test_keys_are_form_encoded_and_sequencers_increase() -> None:
    first = datetime(2025, 4, 2, 12, 0, 0, 900_000, tzinfo=UTC)
    events = [
        ObjectEvent(bucket="b", key="a b/c:d=e+f", size=1, etag="0", event_time=first + timedelta(milliseconds=200 * n))
        for n in range(3)
    ]
    assert events[0].record()["s3"]["object"]["key"] == "a+b/c%3Ad%3De%2Bf"
    sequencers = [event.sequencer for event in events]
    assert sequencers == sorted(set(sequencers))
    assert all(len(sequencer) == 18 and int(sequencer, 16) for sequencer in sequencers)


def test_provisioning_twice_delivers_events_once(cloud: EmbeddedCloud, feed: Feed, contracts: ContractRegistry) -> None:
    cloud.provision(contracts, visibility_timeout=30, max_receive_count=3)
    feed.announce([feed.event(bucket="noaa-hrrr-bdp-pds", key=HRRR_KEY, size=1, etag="0")])
    assert len(drain(cloud)) == 1


RACE = """
import collections, threading, time
from moto.sqs.models import Message, sqs_backends
from kfm_dagster.demo import moto_server

def slowly(method):
    def slow(*args, **kwargs):
        time.sleep(0.0005)
        return method(*args, **kwargs)
    return slow

# Both are called between a read of the queue and its change, so the delay lets another thread act in between.
Message.mark_received = slowly(Message.mark_received)
Message.had_receipt_handle = slowly(Message.had_receipt_handle)
moto_server._correct_moto()
backend = sqs_backends["123456789012"]["us-east-1"]
backend.create_queue("queue", {})
total, received, deadline = 40, collections.Counter(), time.monotonic() + 10

def consume():
    while received.total() < total and time.monotonic() < deadline:
        for message in backend.receive_message("queue", 5, 0, 30):
            backend.delete_message("queue", message.receipt_handle)
            received[message.body] += 1

threads = [threading.Thread(target=consume) for _ in range(4)]
for thread in threads:
    thread.start()
for number in range(total):
    backend.send_message("queue", str(number))
for thread in threads:
    thread.join()
print(total - len(received), "lost,", received.total() - len(received), "twice")
"""


def test_no_message_is_lost_or_delivered_twice_to_concurrent_consumers() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0 lost, 0 twice\n"


def test_files_of_a_folder_are_announced_or_skipped(cloud: EmbeddedCloud, feed: Feed, tmp_path: Path) -> None:
    files = {
        f"noaa-goes17/{GOES_KEY}": b"goes",
        f"unidata-nexrad-level2/{NEXRAD_KEY}": b"nexrad",
        f"noaa-hrrr-bdp-pds/{HRRR_KEY}": b"hrrr",
        f"noaa-hrrr-bdp-pds/{HRRR_KEY}.idx": b"1:0:d=2025040212:TMP:2 m above ground:1 hour fcst:\n",
        f"noaa-hrrr-bdp-pds/{SECOND_KEY}": b"hrrr",
        f"noaa-hrrr-bdp-pds/{SECOND_KEY}.idx": b"1:0:d=2025040212:TMP:2 m above ground:2 hour fcst:\n",
        f"noaa-isd-pds/{ISD_KEY}": b"announced by no topic",
        f"noaa-isd-pds/{ISD_KEY.replace('2020', '1901')}": b"of the first year",
        f"noaa-isd-pds/{ISD_KEY.replace('2020', '1900')}": b"of the year before",
        f"noaa-isd-pds/{ISD_KEY.replace('2020', '2100')}": b"of a year to come",
        f"noaa-hrrr-bdp-pds/{HRRR_KEY.replace('20250402', '20140729')}": b"of the day before the archive",
        "noaa-goes17/SUVI-L1b-Fe093/2019/218/00/a.fits.gz": b"ignored",
        "noaa-himawari9/CONUS/a.grib2.gz": b"unknown",
        "noaa-goes17/README/a.txt": b"foreign",
        "README.md": b"no object",
    }
    put(tmp_path, [good("", name, content) for name, content in files.items()])

    report = feed.from_folder(tmp_path)

    assert report.objects == {"goes-abi": 1, "nexrad-l2": 1, "hrrr": 2, "surface-obs": 2}
    assert (report.sidecars, report.first_day) == (2, date(1901, 1, 1))
    assert report.unannounced == {("surface-obs", date(2020, 1, 1)), ("surface-obs", date(1901, 1, 1))}
    assert len(report.published) == sum(report.objects.values())
    assert cloud.client("s3").head_object(Bucket="noaa-isd-pds", Key=ISD_KEY)["ContentLength"] == 21
    assert report.skipped == {
        f"noaa-isd-pds/{ISD_KEY.replace('2020', '1900')}": "1900-01-01T00:00:00.000000Z is before 1901-01-01, the "
        "first day of the dataset",
        f"noaa-isd-pds/{ISD_KEY.replace('2020', '2100')}": "its day, 2100-01-01, has not begun",
        f"noaa-hrrr-bdp-pds/{HRRR_KEY.replace('20250402', '20140729')}": "2014-07-29T12:00:00.000000Z is before "
        "2014-07-30, the first day of the dataset",
        "README.md": "it is not at <bucket>/<key>",
        "noaa-goes17/README/a.txt": "its key matches no contract of bucket noaa-goes17",
        "noaa-goes17/SUVI-L1b-Fe093/2019/218/00/a.fits.gz": "the contract goes-abi excludes the key from ingest",
        "noaa-himawari9/CONUS/a.grib2.gz": "no dataset contract names bucket noaa-himawari9",
    }
    announced = {
        f"{record['s3']['bucket']['name']}/{unquote_plus(record['s3']['object']['key'])}": record["eventTime"]
        for message in drain(cloud)
        for record in records(message)
    }
    assert announced == {
        f"noaa-goes17/{GOES_KEY}": "2019-08-06T01:39:33.300Z",
        f"unidata-nexrad-level2/{NEXRAD_KEY}": "2025-04-02T22:07:06.000Z",
        f"noaa-hrrr-bdp-pds/{HRRR_KEY}": "2025-04-02T13:00:00.000Z",
        f"noaa-hrrr-bdp-pds/{HRRR_KEY}.idx": "2025-04-02T13:00:00.000Z",
        f"noaa-hrrr-bdp-pds/{SECOND_KEY}": "2025-04-02T13:00:00.000Z",
        f"noaa-hrrr-bdp-pds/{SECOND_KEY}.idx": "2025-04-02T13:00:00.000Z",
    }


def test_an_object_that_no_topic_announces_cannot_be_announced(feed: Feed) -> None:
    event = feed.deliver(FeedObject(bucket="noaa-isd-pds", key=ISD_KEY, content=b"content"))
    with pytest.raises(
        ConfigurationError, match="no topic announces the objects of this bucket; observed noaa-isd-pds"
    ):
        feed.announce([event])


def test_the_chunks_of_a_folder_are_announced_as_their_feed_does(
    cloud: EmbeddedCloud, feed: Feed, contracts: ContractRegistry, tmp_path: Path
) -> None:
    chunks = make_nexrad_chunks(site="KTWX", start=datetime(2025, 4, 2, 22, 6, 36, tzinfo=UTC))
    put(tmp_path, [good(CHUNKS_BUCKET, key, content) for key, content in chunks])
    assert feed.from_folder(tmp_path).objects == {"nexrad-l2-chunks": 4}
    parsed = [
        parse_message(SqsMessage(message_id=sent["MessageId"], body=sent["Body"]), registry=contracts, queue="q")
        for sent in drain(cloud)
    ]
    assert [message.rejections for message in parsed] == [()] * 4
    keys = sorted(unit.key[-5:] for message in parsed for unit in message.envelopes)
    assert keys == ["001-S", "002-I", "003-I", "004-E"]
    wrong = ObjectEvent(bucket=CHUNKS_BUCKET, key="KTWX/x", size=1, etag="0" * 32, event_time=datetime.now(UTC))
    with pytest.raises(ConfigurationError, match="not of a NEXRAD chunk"):
        feed.announce([wrong])


def test_a_folder_that_does_not_exist_is_refused(feed: Feed, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"observed .*absent"):
        feed.from_folder(tmp_path / "absent")


def test_mended_samples_are_complete_immediately_and_after_a_restart(
    cloud: EmbeddedCloud, feed: Feed, call: Call, home: Path
) -> None:
    size = {item.key: len(item.content) for item in sample_objects()}
    assert sum(size.values()) < 20_000_000
    s3, spoilt = cloud.client("s3"), [item for item in sample_objects() if item.delivery is not StoredAs.WHOLE]

    def stored_completely() -> list[str]:
        """Return the keys of the spoilt samples that are stored completely."""
        stored = {
            entry["Key"]: entry["Size"]
            for bucket in {item.bucket for item in spoilt}
            for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", ())
        }
        return [item.key for item in spoilt if stored.get(item.key) == size[item.key]]

    home.mkdir()
    for address in (None, b"no address", b"http://127.0.0.1:1\nx", b"\xff", b"http://127.0.0.1:1"):
        if address is not None:
            (home / SERVED_AT).write_bytes(address)
        refusal = call("demo", "--mend", "--home", str(home))
        refusal.refused("start kfm ui", code=ExitCode.DEPENDENCY_UNAVAILABLE)
    serve_samples(feed, environment=cloud.environment(), home=home)
    assert stored_completely() == []
    shell = f". {shlex.quote(str(home / SHELL))}; echo $AWS_ENDPOINT_URL $AWS_ALLOW_HTTP $AWS_ACCESS_KEY_ID"
    variables = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.split()
    assert variables == [cloud.environment()[name] for name in re.findall(r"AWS_\w+", shell)]
    answer = call("demo", "--mend", "--home", str(home))
    assert answer.out.splitlines() == [f"s3://{item.bucket}/{item.key} is whole" for item in spoilt]
    assert len(stored_completely()) == len(spoilt) == 2
    for item in spoilt:
        s3.delete_object(Bucket=item.bucket, Key=item.key)
    # A folder that a demo ingested is also served; a deleted folder is left out.
    put(home / "more", [good(CHUNKS_BUCKET, "KTWX/1/20250402-220636-001-S", b"content")])
    for folder in (home / "more", home / "absent", home / "more"):
        serve_folder(home, folder)
    serve_samples(feed, environment=cloud.environment(), home=home)
    assert len(stored_completely()) == 2
    assert s3.head_object(Bucket=CHUNKS_BUCKET, Key="KTWX/1/20250402-220636-001-S")["ContentLength"] == 7
    assert call("demo", "--mend", "--all-datasets").code == ExitCode.USAGE


def test_no_process_of_the_cloud_outlives_its_context() -> None:
    before = set(psutil.Process().children(recursive=True))
    with EmbeddedCloud() as cloud:
        process = psutil.Process(cloud.pid)
        endpoint = cloud.endpoint_url
        listening = {connection.laddr.ip for connection in process.net_connections() if connection.status == "LISTEN"}
        assert listening == {"127.0.0.1"}
    assert not process.is_running()
    assert set(psutil.Process().children(recursive=True)) <= before
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(endpoint, timeout=5)
    with pytest.raises(DependencyUnavailableError, match="not started"):
        cloud.environment()


def test_the_server_ends_when_its_parent_is_killed() -> None:
    script = (
        "import time\n"
        "from kfm_dagster.demo.cloud import EmbeddedCloud\n"
        "with EmbeddedCloud() as cloud:\n"
        "    print(cloud.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=10)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([sys.executable, "-c", "raise SystemExit('no such module')"], "ended before it listened; observed no such"),
        (["/nonexistent/server"], "cannot be started; observed .*No such file"),
    ],
)
def test_a_server_that_does_not_start_says_why(command: list[str], message: str) -> None:
    server = ChildServer(name="the server", command=command, environment=os.environ)
    with pytest.raises(DependencyUnavailableError, match=message):
        server.start()
    assert server.pid is None
