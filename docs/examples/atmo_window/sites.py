"""Stations, and their public locations: `stations.csv` and `masking.json` of a folder of weather.

Belongs here: reading exact locations, which no other module does, and the masks that the steward requested. Does not
belong here: observations (`landing.py`), which get only the public part of a station from this module.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.masking import ExactLocation, MaskedLocation, MaskingDecision, masked_location

DATASET = "atmo"
EXACT = "exact"
"""Value of `shown` for a public station; any other value names a mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """The public part of a station; `place` is its own id, or the name of its masked group."""

    place: str
    latitude: float
    longitude: float
    masked: MaskedLocation | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sites:
    """Sites by station id (which is as sensitive as the location), and the decisions behind their masks."""

    by_station: Mapping[str, Site]
    decisions: Sequence[MaskingDecision]

    @property
    def masked(self) -> dict[str, MaskedLocation]:
        """Masked locations by the name of their group."""
        return {site.place: site.masked for site in self.by_station.values() if site.masked is not None}


def read_sites(folder: Path, *, salt: bytes) -> Sites:
    """Read a folder's stations and mask them. Raises ConfigurationError, which names no station and no location."""
    stations, policy = folder / "stations.csv", folder / "masking.json"
    for path in (stations, policy):
        if not path.is_file():
            raise ConfigurationError("a file of the weather folder is missing", observed=path)
    try:
        return _masked(stations, json.loads(policy.read_text(encoding="utf-8")), salt=salt)
    except (KeyError, TypeError, ValueError) as error:
        # Python quotes unreadable text, which may be a coordinate, so neither the error nor its cause is shown.
        raise ConfigurationError(
            "stations or their masking do not fit",
            observed=f"{type(error).__name__} in {stations} or {policy}",
            expected="the columns and members of docs/examples/atmo_window/sample",
        ) from None


def _masked(stations: Path, policy: Mapping[str, Any], *, salt: bytes) -> Sites:
    with stations.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    masks = {name: _masking(name, policy) for name in sorted({row["shown"] for row in rows} - {EXACT})}
    return Sites(
        by_station={row["station"]: _site(row, masks, salt) for row in rows},
        decisions=[MaskingDecision.declared(masking, dataset=DATASET) for masking in masks.values()],
    )


def _masking(name: str, policy: Mapping[str, Any]) -> Masking:
    if name not in {"h3", "donut"}:
        raise ConfigurationError("stations.csv shows a station in an unknown way", expected=f"{EXACT}, h3 or donut")
    decision = {"requested_by": policy["decision"]["actor"], **policy["decision"]}
    del decision["actor"]
    return Masking(method=name, **policy[name], **decision)


def _site(row: Mapping[str, str], masks: Mapping[str, Masking], salt: bytes) -> Site:
    latitude, longitude = float(row["latitude"]), float(row["longitude"])
    if row["shown"] == EXACT:
        return Site(place=row["station"], latitude=latitude, longitude=longitude)
    exact = ExactLocation(latitude=latitude, longitude=longitude)
    shown = masked_location(masks[row["shown"]], row["station"], exact, salt=salt)
    return Site(place=shown.group, latitude=shown.latitude, longitude=shown.longitude, masked=shown)
