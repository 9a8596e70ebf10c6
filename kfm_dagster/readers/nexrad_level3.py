"""Reader of NEXRAD and TDWR Level III: agreement with the key, footprint, STAC properties.

Belongs here: the Item's fields by a product's description. Does not belong here: the layout of an object
(`nexrad_l3_bulletin.py`, `nexrad_l3_message.py`).

Cost: an object is read whole, because only a complete read proves that it is whole. The first request reads 256 KiB,
enough for nearly all real objects; a second request reads the rest. Objects above 4 MiB are refused. bzip2 is unpacked
outside the GIL.

Footprint: a disc of the product's range around the radar. Without a range it is a Point at the radar's position: a VAD
wind profile describes the air above the radar, a status message describes the radar, and a text describes no area.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import nexrad_radar
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest, unchecked
from kfm_dagster.readers.geometry import disc
from kfm_dagster.readers.nexrad_l3_bulletin import Bulletin, read_bulletin
from kfm_dagster.readers.nexrad_l3_message import (
    CLASSIFICATIONS,
    FREE_TEXT,
    HYDROMETEORS,
    TDWR,
    Description,
    Message,
    ProductKind,
    accumulation,
    decode_message,
    product_kinds,
)
from kfm_dagster.readers.nexrad_messages import Position
from kfm_dagster.readers.nexrad_radar import (
    RadarKind,
    Site,
    kind_of,
    pattern_findings,
    position_source,
    radar_position,
    site_named,
)
from kfm_dagster.readers.ranges import BlockCache

FIRST_BYTES = 256 * 1024
"""Bytes of a block (requests are for whole blocks), and of the first request; real objects take 0.1 to 160 KB."""
MAX_BLOCKS = 16
MAX_OBJECT_BYTES = MAX_BLOCKS * FIRST_BYTES

TIME_TOLERANCE = timedelta(seconds=60)
"""Maximum difference between the times of key and object, as for Level II."""
LONGEST_GENERATION = timedelta(hours=1)
"""Maximum time from a volume scan's start to its products. It is 6 s to 4.5 minutes in real objects; a scan takes up to
10 minutes."""
ELEVATIONS = (-1.0, 45.0)
"""Bounds of an elevation angle in degrees (ICD 2620001, table V)."""
_FEET = 0.3048
_MODES = {0: "maintenance", 1: "clear air", 2: "precipitation"}
"""Operational modes (ICD 2620001, figures 3-6 and 3-17)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Content:
    """Content of an object after its heading: a product, a status message or a text."""

    code: int
    start: datetime
    end: datetime
    unchecked: str | None
    stated: Position | None = None
    message: Message | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


def read_nexrad_level3(request: ReadRequest) -> HeaderMetadata:
    """Read an object. Conforms to `Reader`.

    `request.groups` must have `site`, `product` (three letters each) and `stamp` (Y_m_d_H_M_S). start, end and datetime
    are the start of the volume scan (of the elevation's scan, if SAILS repeats the lowest elevation within the volume).
    For an accumulation, start is its begin, end and datetime are its end. For a general status message all three are
    its time; for a plain text, the heading's time. `processing:datetime` is the time of generation. An object has a
    finding COMPLETENESS_UNCHECKED if bytes follow its message or belong to no block, or if no block begins at a stated
    offset. A plain text states no length, so it has the finding when its end is missing. Raises ReadError:
    UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT and INVALID_TIME_RANGE for the bytes, TIME_MISMATCH and
    PLATFORM_MISMATCH against the key, MISSING_GEOLOCATION and INVALID_GEOMETRY for the position.
    """
    nominal = datetime.strptime(request.groups["stamp"], "%Y_%m_%d_%H_%M_%S").replace(tzinfo=UTC)
    stored = BlockCache(request.source, block_bytes=FIRST_BYTES, max_blocks=MAX_BLOCKS)
    bulletin = read_bulletin(stored.read(0, FIRST_BYTES) + stored.read(FIRST_BYTES, request.source.size))
    _check_identifier(bulletin, request.groups)
    content = _text(bulletin, nominal) if bulletin.is_text else _message(decode_message(bulletin.message), nominal)
    site, kind = site_named(bulletin.site), product_kinds().get(content.code)
    radar = nexrad_radar.TDWR if content.code in TDWR else kind_of(site.icao if site else "")
    position = radar_position(content.stated, site, bulletin.site)
    return HeaderMetadata(
        start=content.start,
        end=content.end,
        datetime=content.end,
        geometry=_footprint(position, kind),
        properties={**_properties(bulletin, content, position), **_known(radar, site, kind), **_bands(bulletin, kind)},
        native={"wmo": bulletin.wmo, "site": bulletin.site, **(asdict(content.message) if content.message else {})},
        findings=(
            *unchecked(content.unchecked),
            *pattern_findings(radar, content.properties.get("nexrad:vcp")),
        ),
    )


def _check_identifier(bulletin: Bulletin, groups: Mapping[str, str]) -> None:
    """Compare the key with the AWIPS identifier (ldm-alchemy, upload_nids.py: make_key)."""
    stated, key = (bulletin.site, bulletin.product), (groups["site"], groups["product"])
    if stated != key:
        raise ReadError(
            MetadataIssue.PLATFORM_MISMATCH,
            f"the object is {stated[1]} of {stated[0]}; the key names {key[1]} of {key[0]}",
        )


def _text(bulletin: Bulletin, nominal: datetime) -> _Content:
    """Read a free text message; it is whole if its end or the transmission's end is present."""
    if not bulletin.message.strip() or not bulletin.message.isascii():
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"{bulletin.wmo} is not a plain text")
    start = bulletin.time_near(nominal)
    _check_time(nominal, start, start + timedelta(minutes=1))
    return _Content(
        code=FREE_TEXT,
        start=start,
        end=start,
        unchecked=None if bulletin.is_closed else "a plain text does not state its length",
    )


def _message(message: Message, nominal: datetime) -> _Content:
    description = message.description
    if description is None:
        return _status(message, nominal)
    generated, header_time = description.generation_time, message.time
    if header_time is not None and abs(header_time - generated) > LONGEST_GENERATION:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the header has {rfc3339(header_time, timespec='seconds')}, the product was generated at "
            f"{rfc3339(generated, timespec='seconds')}; expected both within {LONGEST_GENERATION.seconds} s",
        )
    # Unidata names an object by its volume's start; any time from this start to the product's generation is accepted.
    start = description.volume_time
    _check_time(nominal, start, min(max(start, description.generation_time), start + LONGEST_GENERATION))
    begin, end = accumulation(description)
    if begin is None or end is None or begin > end:
        begin = end = start
    return _Content(
        code=description.product_code,
        start=begin,
        end=end,
        stated=Position(
            latitude=description.latitude / 1000,
            longitude=description.longitude / 1000,
            height_m=description.height_ft * _FEET,
        ),
        message=message,
        properties={**_of_radar(message), **_of_description(message, description)},
        unchecked=message.unchecked,
    )


def _status(message: Message, nominal: datetime) -> _Content:
    """Read a general status message: it has neither position nor volume."""
    if message.time is None:
        raise ReadError(MetadataIssue.INVALID_TIME_RANGE, "a general status message without a time")
    _check_time(nominal, message.time, message.time)
    return _Content(
        code=message.code,
        start=message.time,
        end=message.time,
        message=message,
        properties=_of_radar(message),
        unchecked=message.unchecked,
    )


def _check_time(nominal: datetime, first: datetime, last: datetime) -> None:
    if not first - TIME_TOLERANCE <= nominal <= last + TIME_TOLERANCE:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the key has {rfc3339(nominal, timespec='seconds')}; expected {rfc3339(first, timespec='seconds')} to "
            f"{rfc3339(last, timespec='seconds')} within {TIME_TOLERANCE.seconds} s",
        )


def _footprint(position: Position, kind: ProductKind | None) -> Mapping[str, Any]:
    if kind is not None and kind.range_m is not None:
        return disc(position.latitude, position.longitude, kind.range_m)
    return {"type": "Point", "coordinates": (position.longitude, position.latitude)}


def _properties(bulletin: Bulletin, content: _Content, position: Position) -> dict[str, Any]:
    return {
        "processing:level": "L3",
        "nexrad:awips-id": bulletin.product + bulletin.site,
        "nexrad:product-code": content.code,
        "nexrad:compression": "zlib"
        if bulletin.is_zlib
        else "bzip2"
        if content.message and content.message.is_bzip2
        else "none",
        "nexrad:latitude": round(position.latitude, 6),
        "nexrad:longitude": round(position.longitude, 6),
        "nexrad:height-m": round(position.height_m, 1),
        "nexrad:position-source": position_source(position, "product description block"),
        **content.properties,
    }


def _known(radar: RadarKind, site: Site | None, kind: ProductKind | None) -> dict[str, Any]:
    """Return the properties of radar and product by the tables."""
    optional = {
        "nexrad:site": site.icao if site else None,
        "nexrad:site-name": site.name if site else None,
        "nexrad:product-name": kind.name if kind else None,
        "nexrad:mnemonic": (kind.mnemonic or None) if kind else None,
        "nexrad:range-m": kind.range_m if kind else None,
    }
    return {"platform": radar.name, "instruments": [radar.name]} | _there(optional)


def _bands(bulletin: Bulletin, kind: ProductKind | None) -> dict[str, Any]:
    """Return the band of a product with values, by its AWIPS name; empty for other products."""
    if kind is None or not kind.unit:
        return {}
    band: dict[str, Any] = {"name": bulletin.product, "description": kind.name, "unit": kind.unit}
    if kind.code in CLASSIFICATIONS:
        band["classification:classes"] = [{"value": value, "name": name} for value, name in HYDROMETEORS.items()]
    return {"bands": [band]}


def _of_radar(message: Message) -> dict[str, Any]:
    mode = {"nexrad:operational-mode": _MODES.get(message.mode)}
    return {"nexrad:radar-id": message.radar_id, "nexrad:vcp": message.vcp} | _there(mode)


def _of_description(message: Message, description: Description) -> dict[str, Any]:
    names = ("nexrad:accumulation-start", "nexrad:accumulation-end")
    period = dict(zip(names, accumulation(description), strict=True))
    return {
        "processing:datetime": rfc3339(description.generation_time),
        "nexrad:volume-number": description.volume_number,
        "nexrad:blocks": list(message.blocks),
        **_there({"nexrad:elevation": _elevation(description)}),
        **{name: rfc3339(time) for name, time in period.items() if time is not None},
    }


def _elevation(description: Description) -> float | None:
    """Return the elevation in degrees (parameter 3, in tenths); None for a whole volume."""
    angle = description.parameters[2] / 10
    return angle if description.elevation_number > 0 and ELEVATIONS[0] <= angle <= ELEVATIONS[1] else None


def _there(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
