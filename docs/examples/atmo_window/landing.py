"""Landing: the observations delivered for a window, masked, under the hash of their bytes.

    weather/observations/*.csv|parquet + sites -> newest revisions of the window -> one immutable object per place

A sensitive station is masked here, before its observations are stored or hashed. Landed objects have neither the id nor
the location of a sensitive station, so later modules cannot reveal them. Landed objects are never changed and never
deleted, so an intent can be replayed long after a delivery was corrected. Does not belong here: computing (`node.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from docs.examples.atmo_window.duck import session, statement, table, to_parquet
from docs.examples.atmo_window.sites import DATASET, Sites
from docs.examples.atmo_window.window import Window
from kfm_dagster.errors import ConfigurationError, ExitCode, KfmError
from kfm_dagster.governance.masking import masked_entry
from kfm_dagster.idempotent_node import ManifestEntry
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts

READERS = {".csv": "read_csv", ".parquet": "read_parquet"}


class NothingDeliveredError(KfmError):
    """Nothing was delivered for a window."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, kw_only=True, slots=True)
class Landed:
    """A place's observations of a window: the manifest's entry, and the address of the bytes."""

    entry: ManifestEntry
    reference: ArtifactReference


def land(weather: Path, sites: Sites, window: Window, landing: Artifacts) -> tuple[Landed, ...]:
    """Land a window's observations, one object per place, in the order of the places.

    Raises NothingDeliveredError, and ConfigurationError for unreadable or contradictory observations.
    """
    rows = _slice(weather, sites, window)
    if not rows.num_rows:
        raise NothingDeliveredError(observed=window.name, next_step="deliver observations of that hour")
    masked = sites.masked
    landed = []
    for place in pc.unique(rows["place"]).to_pylist():
        content = to_parquet(rows.filter(pc.equal(rows["place"], place)))
        if place in masked:
            entry = ManifestEntry(**masked_entry(DATASET, masked[place], content))
        else:
            entry = ManifestEntry(
                uri=f"urn:kfm:{DATASET}:{place}", size=len(content), checksum=hashlib.sha256(content).hexdigest()
            )
        landed.append(Landed(entry=entry, reference=landing.put(content, suffix="parquet")))
    return tuple(landed)


def _slice(weather: Path, sites: Sites, window: Window) -> pa.Table:
    with session() as connection:
        connection.execute(statement("delivered"))
        for file in sorted((weather / "observations").glob("*")):
            _read(connection, file)
        # Registered by the statements' name; otherwise DuckDB would search it among this function's variables.
        connection.register("sites", _shown(sites))
        ((undeclared, contradicting),) = connection.execute(statement("faults"), window.bounds()).fetchall()
        if undeclared or contradicting:
            raise ConfigurationError(
                "observations cannot be told apart",
                observed=f"{undeclared} of stations that stations.csv has not, {contradicting} reported in two ways",
                expected="a declared station, and one report per station, time and revision",
                next_step="declare the station, or give a correction a higher revision",
            )
        return table(connection, "slice", window.bounds())


def _read(connection: duckdb.DuckDBPyConnection, file: Path) -> None:
    if file.suffix not in READERS:
        raise ConfigurationError("no file of observations", observed=file.name, expected=" or ".join(READERS))
    try:
        connection.execute(statement(READERS[file.suffix]), {"file": str(file)})
    except duckdb.Error as error:
        # DuckDB quotes the row, which names the station, so neither the error nor its cause is shown.
        raise ConfigurationError(
            "a file of observations does not fit",
            observed=f"{file.name}: {type(error).__name__}",
            expected=f"the columns of sql/{READERS[file.suffix]}.sql",
        ) from None


def _shown(sites: Sites) -> pa.Table:
    rows = [
        {"station": station, "place": site.place, "latitude": site.latitude, "longitude": site.longitude}
        for station, site in sorted(sites.by_station.items())
    ]
    columns = {"station": pa.string(), "place": pa.string(), "latitude": pa.float64(), "longitude": pa.float64()}
    return pa.Table.from_pylist(rows, schema=pa.schema(columns.items()))
