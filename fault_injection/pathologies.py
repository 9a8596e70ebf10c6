"""NODD pathologies: irregular behaviour of NOAA's feeds, each as steps to play and an expected outcome.

Each pathology was observed on the real buckets and topics, or follows from the guarantees of S3, SNS and SQS. Belongs
here: the corpus, as data. Does not belong here: the form and playing of a story (`scenarios.py`), the making of objects
(`demo/samples/`), or faults of our own side (`plan.py`).
"""

from __future__ import annotations

import gzip
import struct
from datetime import UTC, datetime, timedelta

from fault_injection.scenarios import Announce, Drain, ExpectedOutcome, Pathology, Store, Version
from kfm_dagster.contracts.issues import IntegrityIssue, MetadataIssue, ParseIssue
from kfm_dagster.demo.samples import goes_abi, hrrr, nexrad_chunks, nexrad_level2
from kfm_dagster.ledger.state_machine import Status

SCAN = datetime(2025, 4, 2, 17, 1, tzinfo=UTC)
"""When the observed scans and volumes began."""
RUN = datetime(2025, 4, 2, 12, tzinfo=UTC)
"""The model run."""
OLD_BUCKET = "noaa-nexrad-level2"
OLD_TOPIC = "arn:aws:sns:us-east-1:811054952067:NewNEXRADLevel2Archive"
"""Bucket and topic of NEXRAD Level II until 2025-09-01 (AWS open-data registry)."""
BOMB_BYTES = 10_000_000
"""Unpacked size of 10 KB of zeros: 15 times the reader's limit."""
VOLUME_HEADER_BYTES = 24
"""ICD 2620010 (Archive II/User), 7.3.3."""


def pathologies() -> tuple[Pathology, ...]:
    """Make the corpus; takes about a second."""
    return (
        _duplicate(),
        _late(),
        _out_of_order(),
        _rewritten_before_its_run(),
        _rewritten_after_its_run(),
        _truncated(),
        _zero_byte(),
        _stale_sidecar(),
        *_created_again(),
        _moved_bucket(),
        _volume_without_end(),
        _volume_that_unpacks_for_ever(),
        *_chunks_without_end(),
    )


def _duplicate() -> Pathology:
    first, second = _volume("KTWX"), _volume("KICT")
    return Pathology(
        name="duplicate",
        story="A volume is announced by two messages, twice by a third, and once more after its unit has ended.",
        steps=(
            *_stored(first, second),
            Announce(versions=(first,)),
            Announce(versions=(first,)),
            Announce(versions=(first, second, first)),
            Drain(),
            Announce(versions=(first,)),
        ),
        fates=_all_well(first, second),
        shown=(first, second),
    )


def _late() -> Pathology:
    timely, late = _volume("KTWX"), _volume("KICT", minutes=1)
    return Pathology(
        name="late",
        story="A message arrives after the runs of its day have ended.",
        steps=(
            *_stored(timely, late),
            Announce(versions=(timely,)),
            Drain(),
            Announce(versions=(late,)),
        ),
        fates=_all_well(timely, late),
        shown=(timely, late),
    )


def _out_of_order() -> Pathology:
    old, new = _volume("KTWX"), _volume("KTWX", edition=2)
    return Pathology(
        name="out of order",
        story="The event of a rewritten object arrives before the event of the object's first version.",
        steps=(
            Store(version=new),
            Announce(versions=(new,)),
            Announce(versions=(old,)),
        ),
        fates=(
            ExpectedOutcome(version=old, status=Status.QUARANTINED, code="stale_event"),
            ExpectedOutcome(version=new, status=Status.SUCCEEDED),
        ),
        shown=(new,),
    )


def _rewritten_before_its_run() -> Pathology:
    old, new = _volume("KTWX"), _volume("KTWX", edition=2)
    return Pathology(
        name="rewritten in place",
        story="An object is put, announced, and put again under its key before the pipeline reads it.",
        steps=(
            Store(version=old),
            Announce(versions=(old,)),
            Store(version=new),
            Announce(versions=(new,)),
        ),
        fates=(
            ExpectedOutcome(version=old, status=Status.QUARANTINED, code="superseded"),
            ExpectedOutcome(version=new, status=Status.SUCCEEDED),
        ),
        shown=(new,),
    )


def _rewritten_after_its_run() -> Pathology:
    old, new = _volume("KTWX"), _volume("KTWX", edition=2)
    return Pathology(
        name="rewritten in place, later",
        story="An object is put again under its key after its Item was registered.",
        steps=(
            Store(version=old),
            Announce(versions=(old,)),
            Drain(),
            Store(version=new),
            Announce(versions=(new,)),
        ),
        fates=_all_well(old, new),
        shown=(new,),
    )


def _truncated() -> Pathology:
    volume = _volume("KTWX")
    return Pathology(
        name="truncated",
        story="The bucket has only the first three quarters of the announced object.",
        steps=(
            Store(version=volume, content=volume.content[: len(volume.content) * 3 // 4]),
            Announce(versions=(volume,)),
        ),
        fates=(ExpectedOutcome(version=volume, status=Status.QUARANTINED, code=IntegrityIssue.SIZE_MISMATCH),),
    )


def _zero_byte() -> Pathology:
    volume = _volume("KTWX", content=b"")
    return Pathology(
        name="zero-byte",
        story="An empty object is put, and announced as empty.",
        steps=(
            Store(version=volume),
            Announce(versions=(volume,)),
        ),
        fates=(ExpectedOutcome(version=volume, status=Status.QUARANTINED, code=IntegrityIssue.SIZE_ZERO),),
    )


def _stale_sidecar() -> Pathology:
    forecast, _ = _forecast(RUN)
    _, earlier_index = _forecast(RUN - timedelta(days=1))
    index = Version(bucket=forecast.bucket, key=f"{forecast.key}.idx", content=earlier_index, at=forecast.at)
    return Pathology(
        name="stale sidecar",
        story="The .idx beside a forecast is the index of yesterday's run.",
        steps=(*_stored(index, forecast), Announce(versions=(index,)), Announce(versions=(forecast,))),
        fates=(ExpectedOutcome(version=forecast, status=Status.QUARANTINED, code=MetadataIssue.SIDECAR_MISMATCH),),
    )


def _created_again() -> tuple[Pathology, Pathology]:
    first, again = _scan(created=SCAN + timedelta(minutes=4)), _scan(created=SCAN + timedelta(hours=3))
    story = "NESDIS issues a scan a second time, under a key that differs only in its creation time{}."
    return (
        Pathology(
            name="same scan, another creation time",
            story=story.format(""),
            steps=(
                *_stored(first, again),
                Announce(versions=(first,)),
                Drain(),
                Announce(versions=(again,)),
            ),
            fates=_all_well(first, again),
            shown=(again,),
        ),
        Pathology(
            name="same scan, another creation time, newer first",
            story=story.format("; its event comes first"),
            steps=(
                *_stored(first, again),
                Announce(versions=(again,)),
                Drain(),
                Announce(versions=(first,)),
            ),
            fates=_all_well(first, again),
            shown=(again,),
        ),
    )


def _moved_bucket() -> Pathology:
    volume = _volume("KTWX")
    old = Version(bucket=OLD_BUCKET, key=volume.key, content=volume.content, at=volume.at)
    return Pathology(
        name="moved bucket",
        story="A volume is announced by a bucket and topic that have ended, and by their successors.",
        steps=(
            Store(version=volume),
            Announce(versions=(old,), topic=OLD_TOPIC),
            Announce(versions=(volume,)),
        ),
        fates=_all_well(volume),
        shown=(volume,),
        rejected=(ParseIssue.UNROUTABLE_TOPIC,),
    )


def _volume_without_end() -> Pathology:
    whole = _volume("KTWX").content
    bounds = [VOLUME_HEADER_BYTES]
    while bounds[-1] < len(whole):  # LDM records, each after its size, which is negative for the last record
        bounds.append(bounds[-1] + 4 + abs(struct.unpack_from(">i", whole, bounds[-1])[0]))
    sweep = whole[bounds[-3] : bounds[-2]]
    volume = _volume("KTWX", content=whole[: bounds[-2]] + 8 * sweep)
    return Pathology(
        name="volume that never ends",
        story="A volume has sweep after sweep, and none of its records is marked as the last. Its header is valid.",
        steps=(
            Store(version=volume),
            Announce(versions=(volume,)),
        ),
        fates=_all_well(volume),
        shown=(volume,),
    )


def _volume_that_unpacks_for_ever() -> Pathology:
    bomb = gzip.compress(_volume("KTWX").content[:VOLUME_HEADER_BYTES] + bytes(BOMB_BYTES), mtime=0)
    volume = _volume("KTWX", content=bomb)
    return Pathology(
        name="volume that never ends, gzipped",
        story="The object of a volume's key unpacks to far more bytes than any volume has.",
        steps=(
            Store(version=volume),
            Announce(versions=(volume,)),
        ),
        fates=(ExpectedOutcome(version=volume, status=Status.QUARANTINED, code=MetadataIssue.RESOURCE_LIMIT),),
    )


def _chunks_without_end() -> tuple[Pathology, Pathology]:
    begun, last, *_ = _chunks("KTWX", minutes=0)
    following = _chunks("KTWX", minutes=6)
    story = "A radar is restarted in the middle of a volume: no chunk ends it{}. A later volume closes it."
    return (
        Pathology(
            name="volume that never ends, in chunks",
            story=story.format(""),
            steps=(
                *_stored(begun, last, *following),
                Announce(versions=(begun, last)),
                Drain(),
                Announce(versions=following),
                Announce(versions=(last,)),
            ),
            fates=_all_well(begun, last, *following),
            shown=(last, following[-1]),
            closed=(last,),
        ),
        Pathology(
            name="volume that never ends, in chunks, the next one first",
            story=story.format(", and the messages of the next volume arrive before its own"),
            steps=(
                *_stored(begun, last, *following),
                Announce(versions=following),
                Drain(),
                Announce(versions=(last, begun)),
            ),
            fates=_all_well(begun, last, *following),
            shown=(last, following[-1]),
            closed=(last,),
        ),
    )


def _chunks(site: str, *, minutes: int) -> tuple[Version, ...]:
    start = SCAN + timedelta(minutes=minutes)
    return tuple(
        Version(bucket=nexrad_chunks.BUCKET, key=key, content=content, at=start + timedelta(minutes=number))
        for number, (key, content) in enumerate(nexrad_chunks.make_nexrad_chunks(site=site, start=start), start=1)
    )


def _volume(site: str, *, minutes: int = 0, edition: int = 1, content: bytes | None = None) -> Version:
    start = SCAN + timedelta(minutes=minutes)
    key, sample = nexrad_level2.make_nexrad_level2(site=site, start=start, volume_number=edition)
    at = start + timedelta(minutes=5 * edition)
    return Version(bucket=nexrad_level2.BUCKET, key=key, content=sample if content is None else content, at=at)


def _scan(*, created: datetime) -> Version:
    key, content = goes_abi.make_goes_abi(product="ABI-L2-CMIPC", start=SCAN, satellite=19, band=13, created=created)
    return Version(bucket="noaa-goes19", key=key, content=content, at=created + timedelta(seconds=30))


def _forecast(run: datetime) -> tuple[Version, bytes]:
    key, content, index = hrrr.make_hrrr(run=run, lead=1)
    return Version(bucket=hrrr.BUCKET, key=key, content=content, at=run + timedelta(hours=1)), index.encode()


def _stored(*versions: Version) -> tuple[Store, ...]:
    return tuple(Store(version=version) for version in versions)


def _all_well(*versions: Version) -> tuple[ExpectedOutcome, ...]:
    return tuple(ExpectedOutcome(version=version, status=Status.SUCCEEDED) for version in versions)
