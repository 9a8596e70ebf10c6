"""The demo's objects: two days of three datasets, and a delivery of each bad kind.

Belongs here: the list of objects, small and in their true formats, and their messages. Does not belong here: making an
object (`samples/`) or publishing it (`feed.py`). All bytes are fixed, so publishing them again changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from kfm_dagster.demo.cloud import aws_client
from kfm_dagster.demo.feed import Feed, FeedObject, StoredAs
from kfm_dagster.demo.samples import goes_abi, hrrr, nexrad_level2
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.redaction import error_text

SAMPLE_DAY = date(2025, 4, 2)
"""A day when GOES-16, 18 and 19 all published, five days before GOES-19 took over as GOES-East."""

DATASETS = frozenset({"goes-abi", "hrrr", "nexrad-l2"})
"""Datasets of the samples. The demo follows only these, unless it ingests other objects or KFM_DATASETS is set."""
MENDED = "samples-mended"
"""File in the data root; if it exists, the spoilt samples are stored whole."""
FOLDERS = "samples-folders"
"""File in the data root with the folders of objects that demos ingested, one a line; `kfm ui` serves them, too."""
SERVED_AT = "samples-address"
"""File in the data root with the address of the cloud where `kfm ui` stores the samples."""
SHELL = "samples.env"
"""File in the data root that points the clients of a shell at this cloud."""

_GOES = (
    # satellite, product, band, hours after the first midnight
    (16, "ABI-L1b-RadC", 2, 17.02),
    (16, "ABI-L1b-RadC", 13, 17.02),
    (16, "ABI-L2-CMIPC", 13, 17.02),
    (16, "ABI-L2-MCMIPC", None, 17.02),
    (16, "ABI-L1b-RadM1", 13, 17.01),
    (16, "ABI-L2-CMIPM2", 13, 17.01),
    (18, "ABI-L1b-RadF", 13, 17.0),
    (18, "ABI-L2-MCMIPC", None, 17.02),
    (19, "ABI-L1b-RadC", 7, 29.02),
    (19, "ABI-L2-CMIPC", 9, 29.02),
    (19, "ABI-L2-MCMIPF", None, 29.0),
    (19, "ABI-L1b-RadM2", 2, 29.01),
)
_TRUNCATED = (18, "ABI-L2-CMIPC", 13, 17.02)
_NEXRAD = (
    # The WSR-88D sites of Kansas, in the evening of the first day (UTC) and the night after.
    ("KTWX", 22.11),
    ("KICT", 22.12),
    ("KDDC", 22.13),
    ("KGLD", 22.14),
    ("KTWX", 25.11),
    ("KICT", 25.12),
    ("KDDC", 25.13),
    ("KGLD", 25.14),
)
_MISSING = ("KTWX", 23.11)
_HRRR = (
    # hours from the first midnight to the run, lead, product, region
    (12, 0, "sfc", "conus"),
    (12, 1, "sfc", "conus"),
    (12, 18, "sfc", "conus"),
    (12, 6, "prs", "conus"),
    (12, 6, "nat", "conus"),
    (12, 2, "subh", "conus"),
    (36, 1, "sfc", "conus"),
    (36, 3, "sfc", "alaska"),
)
_TOGETHER = 3
"""Number of volumes that one message announces."""
_MALFORMED = '{"Type": "Notification", "TopicArn": "arn:aws:sns:us-east-1:123901341784:NewGOES16Object", "Message": '


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSamples:
    """Published objects as `s3://bucket/key`, and the number of messages in the queue."""

    objects: tuple[str, ...]
    sidecars: tuple[str, ...]
    duplicate: str
    """The member of `objects` that was announced twice."""
    truncated: str
    """Announced as whole, but only half of it is stored."""
    missing: str
    """Announced, but not stored."""
    together: tuple[str, ...]
    """The members of `objects` that were announced in one message."""
    malformed: str
    """Body of the message that is not JSON."""
    messages: int


def sample_objects(first_day: date = SAMPLE_DAY) -> Iterator[FeedObject]:
    """Yield the objects of two days: GOES ABI, NEXRAD, HRRR with sidecars; two are spoilt."""
    midnight = datetime.combine(first_day, time(), UTC)
    for satellite, product, band, hours in (*_GOES, _TRUNCATED):
        start = midnight + timedelta(hours=hours)
        key, content = goes_abi.make_goes_abi(product=product, start=start, satellite=satellite, band=band, drawn=True)
        is_whole = (satellite, product, band, hours) != _TRUNCATED
        delivery = StoredAs.WHOLE if is_whole else StoredAs.TRUNCATED
        yield FeedObject(bucket=f"noaa-goes{satellite}", key=key, content=content, delivery=delivery)
    for site, hours in (*_NEXRAD, _MISSING):
        key, content = nexrad_level2.make_nexrad_level2(site=site, start=midnight + timedelta(hours=hours), drawn=True)
        delivery = StoredAs.MISSING if (site, hours) == _MISSING else StoredAs.WHOLE
        yield FeedObject(bucket=nexrad_level2.BUCKET, key=key, content=content, delivery=delivery)
    for hours, lead, product, region in _HRRR:
        run = midnight + timedelta(hours=hours)
        key, content, index = hrrr.make_hrrr(run=run, lead=lead, product=product, region=region, drawn=True)
        yield FeedObject(bucket=hrrr.BUCKET, key=key, content=content)
        yield FeedObject(bucket=hrrr.BUCKET, key=f"{key}.idx", content=index.encode())


def publish_samples(feed: Feed, *, first_day: date = SAMPLE_DAY) -> PublishedSamples:
    """Publish the samples, with a shared message, a duplicate and a malformed message."""
    uris: dict[StoredAs, list[str]] = {delivery: [] for delivery in StoredAs}
    events = []
    for item in sample_objects(first_day):
        events.append(feed.deliver(item))
        uris[item.delivery].append(f"s3://{item.bucket}/{item.key}")
    volumes = [event for event in events if event.bucket == nexrad_level2.BUCKET][:_TOGETHER]
    messages = feed.announce(event for event in events if event not in volumes)
    feed.announce_together(volumes)
    messages += feed.announce(events[:1])
    feed.announce_raw(_MALFORMED)
    return PublishedSamples(
        objects=tuple(uri for uri in uris[StoredAs.WHOLE] if not uri.endswith(".idx")),
        sidecars=tuple(uri for uri in uris[StoredAs.WHOLE] if uri.endswith(".idx")),
        duplicate=f"s3://{events[0].bucket}/{events[0].key}",
        truncated=uris[StoredAs.TRUNCATED][0],
        missing=uris[StoredAs.MISSING][0],
        together=tuple(f"s3://{event.bucket}/{event.key}" for event in volumes),
        malformed=_MALFORMED,
        messages=messages + 2,
    )


def serve_samples(feed: Feed, *, environment: Mapping[str, str], home: Path) -> None:
    """Store the samples and the demos' folders for `kfm ui`, without announcing them.

    After `mend_samples`, the spoilt samples are stored whole. `environment` has the variables that point clients at the
    feed's cloud.
    """
    mended = (home / MENDED).exists()
    for item in sample_objects():
        feed.deliver(replace(item, delivery=StoredAs.WHOLE) if mended else item)
    for folder in served_folders(home):
        feed.store_folder(Path(folder))
    (home / SERVED_AT).write_text(environment["AWS_ENDPOINT_URL"], encoding="utf-8")
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items() if name.startswith("AWS_"))
    (home / SHELL).write_text("".join(lines), encoding="utf-8")


def serve_folder(home: Path, folder: Path) -> None:
    """Let later starts of `kfm ui` serve a folder of objects, too."""
    folders = dict.fromkeys((*served_folders(home), str(folder.absolute())))
    (home / FOLDERS).write_text("".join(f"{line}\n" for line in folders), encoding="utf-8")


def served_folders(home: Path) -> list[str]:
    """Return the folders of objects that demos of this home ingested."""
    file = home / FOLDERS
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def mend_samples(home: Path) -> list[str]:
    """Store each spoilt sample whole, now and at later starts of `kfm ui`; return the URIs.

    Raises DependencyUnavailableError unless `kfm ui` serves the samples of `home`.
    """
    spoilt = [item for item in sample_objects() if item.delivery is not StoredAs.WHOLE]
    try:
        s3 = aws_client("s3", endpoint_url=(home / SERVED_AT).read_text(encoding="utf-8"))
        for item in spoilt:
            s3.put_object(Bucket=item.bucket, Key=item.key, Body=item.content)
    except (OSError, ValueError, BotoCoreError, ClientError) as error:  # ValueError: a damaged address
        raise DependencyUnavailableError(
            "the samples are not served here",
            observed=error_text(error),
            expected=f"kfm ui over {home}",
            next_step="start kfm ui, or name its data root with --home",
        ) from None
    (home / MENDED).touch()
    return [f"s3://{item.bucket}/{item.key}" for item in spoilt]
