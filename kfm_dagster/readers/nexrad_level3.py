"""The reader of NEXRAD and TDWR Level III products: agreement with the key, footprint, STAC properties.

Belongs here: what a product's description means to the catalog. Does not belong here: how an object is laid out
(`nexrad_l3_bulletin.py`, `nexrad_l3_message.py`).

Cost: an object is read whole, because only then is it known to be: one request of 256 KiB, which nearly all real
objects fit in, and a second one for the rest of up to 4 MiB. bzip2 is unpacked outside the GIL.

Footprint: a disc of the product's range around the radar. A product without a range is a Point, the radar's position:
a VAD wind profile is of the air above it, a status message of the radar itself, and a text names no area at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers import nexrad_radar
from kfm_dagster.readers.base import HeaderMetadata, ReadError, ReadRequest
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

PROPERTIES = frozenset({
    "platform", "instruments", "processing:level", "processing:datetime", "nexrad:awips-id", "nexrad:site",
    "nexrad:site-name", "nexrad:product-code", "nexrad:product-name", "nexrad:mnemonic", "nexrad:elevation",
    "nexrad:vcp", "nexrad:volume-number", "nexrad:operational-mode", "nexrad:radar-id", "nexrad:range-m",
    "nexrad:latitude", "nexrad:longitude", "nexrad:height-m", "nexrad:position-source", "nexrad:compression",
    "nexrad:blocks", "nexrad:accumulation-start", "nexrad:accumulation-end", "bands",
})  # fmt: skip
"""What an object can have."""
READ_BYTES = 256 * 1024
"""One block of a range request; real objects take 0.1 to 160 KB."""
FIRST_BYTES = READ_BYTES
"""Of an object, by its first request."""
MAX_BLOCKS = 16
MAX_OBJECT_BYTES = MAX_BLOCKS * READ_BYTES

TIME_TOLERANCE = timedelta(seconds=60)
"""Between the key's time and the object's, as with Level II."""
LONGEST_GENERATION = timedelta(hours=1)
"""From a volume scan's start to its products: 6 s to 4.5 minutes in real ones, and a scan takes 10 minutes at most."""
ELEVATIONS = (-1.0, 45.0)
"""What an elevation angle can be, degrees (ICD 2620001, table V)."""
_FEET = 0.3048
_MODES = {0: "maintenance", 1: "clear air", 2: "precipitation"}
"""ICD 2620001, figures 3-6 and 3-17: operational mode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Content:
    """What an object says beside its heading, of whichever form it is."""

    code: int
    start: datetime
    end: datetime
    unchecked: str | None
    stated: Position | None = None
    is_bzip2: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)
    native: Mapping[str, Any] = field(default_factory=dict)


def read_nexrad_level3(request: ReadRequest) -> HeaderMetadata:
    """Read an object; `request.groups` must have `site`, `product` (three letters each) and `stamp` (Y_m_d_H_M_S).

    start, end and datetime are the start of the volume scan (with SAILS that of the elevation); of an accumulation they
    are its begin, end and end again; for a general status message the message's time, for a plain text that of its
    heading. `processing:datetime` is when the product was generated. An object of which more or less is there than its
    lengths say has a finding COMPLETENESS_UNCHECKED, and so has a plain text, which says no length, without the end of
    its transmission.
    Raises ReadError: UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT and INVALID_TIME_RANGE for the bytes,
    TIME_MISMATCH and PLATFORM_MISMATCH against the key, MISSING_GEOLOCATION and INVALID_GEOMETRY for the position.
    """
    nominal = datetime.strptime(request.groups["stamp"], "%Y_%m_%d_%H_%M_%S").replace(tzinfo=UTC)
    stored = BlockCache(request.source, block_bytes=READ_BYTES, max_blocks=MAX_BLOCKS)
    bulletin = read_bulletin(stored.read(0, READ_BYTES) + stored.read(READ_BYTES, request.source.size))
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
        native={"wmo": bulletin.wmo, "site": bulletin.site, **content.native},
        findings=(
            *(((MetadataIssue.COMPLETENESS_UNCHECKED, content.unchecked),) if content.unchecked else ()),
            *pattern_findings(radar, content.properties.get("nexrad:vcp")),
        ),
    )


def _check_identifier(bulletin: Bulletin, groups: Mapping[str, str]) -> None:
    """Hold the key's site and product against those of the AWIPS identifier (ldm-alchemy, upload_nids.py: make_key)."""
    stated, key = (bulletin.site, bulletin.product), (groups["site"], groups["product"])
    if stated != key:
        raise ReadError(
            MetadataIssue.PLATFORM_MISMATCH,
            f"the object is {stated[1]} of {stated[0]}; the key says {key[1]} of {key[0]}",
        )


def _text(bulletin: Bulletin, nominal: datetime) -> _Content:
    """Read a free text message that is nothing but text; its own end, or its transmission's, proves it whole."""
    if not bulletin.message.strip() or not bulletin.message.isascii():
        raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"{bulletin.wmo} is no plain text")
    start = bulletin.time_near(nominal)
    _check_time(nominal, start, start + timedelta(minutes=1))
    return _Content(
        code=FREE_TEXT,
        start=start,
        end=start,
        unchecked=None if bulletin.is_closed else "a plain text does not say how long it is",
    )


def _message(message: Message, nominal: datetime) -> _Content:
    description = message.description
    if description is None:
        return _status(message, nominal)
    made, sent = description.generation_time, message.time
    if sent is not None and abs(sent - made) > LONGEST_GENERATION:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the header says {rfc3339(sent, timespec='seconds')}, the product was generated at "
            f"{rfc3339(made, timespec='seconds')}; expected both within {LONGEST_GENERATION.seconds} s",
        )
    # Unidata names an object by its volume's start; any time from there to the product's generation is its own.
    start = description.volume_time
    _check_time(nominal, start, min(max(start, description.generation_time), start + LONGEST_GENERATION))
    begin, end = _accumulation(description)
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
        is_bzip2=message.is_bzip2,
        properties={**_of_radar(message), **_of_description(message, description)},
        native=_native(message, description),
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
        properties=_of_radar(message),
        native={"message_length": message.length, "message_time": message.time, "vcp": message.vcp},
        unchecked=message.unchecked,
    )


def _check_time(nominal: datetime, first: datetime, last: datetime) -> None:
    if not first - TIME_TOLERANCE <= nominal <= last + TIME_TOLERANCE:
        raise ReadError(
            MetadataIssue.TIME_MISMATCH,
            f"the key says {rfc3339(nominal, timespec='seconds')}; expected {rfc3339(first, timespec='seconds')} to "
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
        "nexrad:compression": "zlib" if bulletin.is_zlib else "bzip2" if content.is_bzip2 else "none",
        "nexrad:latitude": round(position.latitude, 6),
        "nexrad:longitude": round(position.longitude, 6),
        "nexrad:height-m": round(position.height_m, 1),
        "nexrad:position-source": position_source(position, "product description block"),
        **content.properties,
    }


def _known(radar: RadarKind, site: Site | None, kind: ProductKind | None) -> dict[str, Any]:
    """Return what the tables say of the radar and the product."""
    known = {
        "nexrad:site": site.icao if site else None,
        "nexrad:site-name": site.name if site else None,
        "nexrad:product-name": kind.name if kind else None,
        "nexrad:mnemonic": (kind.mnemonic or None) if kind else None,
        "nexrad:range-m": kind.range_m if kind else None,
    }
    return {"platform": radar.name, "instruments": [radar.name]} | _there(known)


def _bands(bulletin: Bulletin, kind: ProductKind | None) -> dict[str, Any]:
    """Return the band of a product with values, by the product's AWIPS name; nothing for the others."""
    if kind is None or not kind.unit:
        return {}
    band: dict[str, Any] = {"name": bulletin.product, "description": kind.name, "unit": kind.unit}
    if kind.code in CLASSIFICATIONS:
        band["classification:classes"] = [{"value": value, "name": name} for value, name in HYDROMETEORS.items()]
    return {"bands": [band]}


def _of_radar(message: Message) -> dict[str, Any]:
    mode = {"nexrad:operational-mode": _MODES.get(message.mode)}
    return {"nexrad:radar-id": message.radar_id, "nexrad:vcp": message.vcp} | _there(mode)


def _accumulation(description: Description) -> tuple[datetime | None, datetime | None]:
    kind = product_kinds().get(description.product_code)
    return accumulation(description, kind) if kind else (None, None)


def _of_description(message: Message, description: Description) -> dict[str, Any]:
    names = ("nexrad:accumulation-start", "nexrad:accumulation-end")
    period = dict(zip(names, _accumulation(description), strict=True))
    return {
        "processing:datetime": rfc3339(description.generation_time),
        "nexrad:volume-number": description.volume_number,
        "nexrad:blocks": list(message.blocks),
        **_there({"nexrad:elevation": _elevation(description)}),
        **{name: rfc3339(time) for name, time in period.items() if time is not None},
    }


def _elevation(description: Description) -> float | None:
    """Angle in degrees: parameter 3 in tenths, where the product is of one elevation and not of the whole volume."""
    angle = description.parameters[2] / 10
    return angle if description.elevation_number > 0 and ELEVATIONS[0] <= angle <= ELEVATIONS[1] else None


def _native(message: Message, description: Description) -> dict[str, Any]:
    return {
        "message_code": message.code,
        "message_length": message.length,
        "message_time": message.time,
        "source_id": message.radar_id,
        "lat": description.latitude / 1000,
        "lon": description.longitude / 1000,
        "height_ft": description.height_ft,
        "product_code": description.product_code,
        "vcp": message.vcp,
        "vol_time": description.volume_time,
        "prod_time": description.generation_time,
        "elevation_number": description.elevation_number,
        "parameters": list(description.parameters),
    }


def _there(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
