"""A day's Parquet tables: arrivals by radar volume and elevation, and their paths.

Volumes of one site and pattern have the same paths, so the table has each path once, under the digest of its arrays.
Belongs here: the schemas, and the rows of computed arrivals. Does not belong here: the node that makes the tables
(`path_arrivals.py`), or the beams (`path/`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.path.beam import BeamPath
from kfm_dagster.path.volume import PathArrival
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts

ARRIVALS_AT_ONCE = 2_000
PATHS_AT_ONCE = 20
"""Rows of a row group, which are in memory as Python values: some 10 MB of either table. A day of the whole network has
560,000 rows and 2,000 paths of 2,000 points."""

_TEXT, _NUMBER = pa.string(), pa.float64()
ARRIVALS = pa.schema(
    [
        pa.field("wal_id", _TEXT, nullable=False),
        pa.field("object_uri", _TEXT, nullable=False),
        pa.field("site", _TEXT, nullable=False),
        pa.field("ts_start", pa.timestamp("us", tz="UTC"), nullable=False),
        # The start's offset behind the time that it is aligned to.
        pa.field("time_offset_s", _NUMBER, nullable=False),
        pa.field("f_s_hz", _NUMBER, nullable=False),
        pa.field("elevation_deg", _NUMBER, nullable=False),
        pa.field("path_id", _TEXT, nullable=False),
        pa.field("geometry", _TEXT, nullable=False),
        pa.field("delta_form", _TEXT, nullable=False),
        pa.field("antenna_height_m", _NUMBER, nullable=False),
        pa.field("extent_m", _NUMBER, nullable=False),
        pa.field("end_height_m", _NUMBER, nullable=False),
        pa.field("end_distance_m", _NUMBER, nullable=False),
        pa.field("c_ref_m_s", _NUMBER, nullable=False),
        pa.field("lambda_ref_m", _NUMBER, nullable=False),
        pa.field("frequency_stated", pa.bool_(), nullable=False),
        # Begin and end, from the antenna, of the window in which the mean of Phi is zero.
        pa.field("reference_window_m", pa.list_(_NUMBER, 2), nullable=False),
        pa.field("optical_path_m", _NUMBER, nullable=False),
        pa.field("t_arr_s", _NUMBER, nullable=False),
        pa.field("t_arr_sigma_s", _NUMBER, nullable=False),
        pa.field("phi_rad", _NUMBER, nullable=False),
        pa.field("phi_sigma_rad", _NUMBER, nullable=False),
        pa.field("phi_aligned_rad", _NUMBER, nullable=False),
        pa.field("t_phi_covariance_s_rad", _NUMBER, nullable=False),
        # A row of the covariance of T_arr over the unit's elevations, in the order of its rows.
        pa.field("t_arr_covariance_s2", pa.list_(_NUMBER), nullable=False),
    ]
)
PATHS = pa.schema(
    [
        pa.field("path_id", _TEXT, nullable=False),
        # Lists of one length: ground distance and height above the sea, the element and the index at each ell.
        pa.field("ell_m", pa.list_(_NUMBER), nullable=False),
        pa.field("gamma_ell_m", pa.list_(pa.list_(_NUMBER, 2)), nullable=False),
        pa.field("d_ell_m", pa.list_(_NUMBER), nullable=False),
        pa.field("n_eff", pa.list_(_NUMBER), nullable=False),
    ]
)


def to_parquet(found: Sequence[tuple[Envelope, PathArrival]]) -> tuple[bytes, bytes]:
    """Encode both tables; equal arrivals give equal bytes under one pyarrow release."""
    paths: dict[str, BeamPath] = {}
    # Volumes of a site and pattern share their beams, so that each digest is computed once.
    ids: dict[BeamPath, str] = {}
    for beam in (beam for _, arrival in found for beam in arrival.beams):
        if beam not in ids:
            paths.setdefault(ids.setdefault(beam, _digest(beam)), beam)
    arrivals = (row for unit, arrival in found for row in _rows(unit, arrival, ids))
    return (
        _encoded(arrivals, ARRIVALS, at_once=ARRIVALS_AT_ONCE),
        _encoded((_path_row(path_id, paths[path_id]) for path_id in sorted(paths)), PATHS, at_once=PATHS_AT_ONCE),
    )


def read_table(artifacts: Artifacts, table: ArtifactReference) -> list[dict[str, Any]]:
    """Return the rows of a table. Raises ArtifactError if it is missing or changed."""
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(artifacts.get(table))).to_pylist()
    return rows


def _encoded(rows: Iterator[dict[str, Any]], schema: pa.Schema, *, at_once: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_statistics=False) as writer:
        while group := list(islice(rows, at_once)):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
    return bytes(sink.getvalue())


def _digest(beam: BeamPath) -> str:
    arrays = (beam.ell, beam.gamma_ell, beam.d_ell, beam.n_eff)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def _path_row(path_id: str, beam: BeamPath) -> dict[str, Any]:
    return {
        "path_id": path_id,
        "ell_m": beam.ell,
        "gamma_ell_m": list(beam.gamma_ell),
        "d_ell_m": beam.d_ell,
        "n_eff": beam.n_eff,
    }


def _rows(unit: Envelope, found: PathArrival, ids: Mapping[BeamPath, str]) -> Iterator[dict[str, Any]]:
    facts = found.facts
    for index, (arrival, beam) in enumerate(zip(found.arrivals, found.beams, strict=True)):
        covariance = found.phase_covariance[index]
        yield {
            "wal_id": unit.wal_id,
            "object_uri": unit.object_uri,
            "site": facts.site,
            "ts_start": unit.time_range_start,
            "time_offset_s": arrival.time_offset_s,
            "f_s_hz": arrival.f_s_hz,
            "elevation_deg": arrival.elevation_deg,
            "path_id": ids[beam],
            "geometry": arrival.geometry.value,
            "delta_form": arrival.delta_form.value,
            "antenna_height_m": facts.antenna_height_m,
            "extent_m": arrival.extent_m,
            "end_height_m": float(beam.height_m[-1]),
            "end_distance_m": float(beam.distance_m[-1]),
            "c_ref_m_s": arrival.c_ref_m_s,
            "lambda_ref_m": arrival.lambda_ref_m,
            "frequency_stated": facts.frequency_mhz is not None,
            "reference_window_m": list(arrival.reference_window_m),
            "optical_path_m": arrival.optical_path_m,
            "t_arr_s": arrival.t_arr_s,
            "t_arr_sigma_s": math.sqrt(covariance[0, 0]),
            "phi_rad": arrival.phi_rad,
            "phi_sigma_rad": math.sqrt(covariance[1, 1]),
            "phi_aligned_rad": arrival.phi_aligned_rad,
            "t_phi_covariance_s_rad": float(covariance[0, 1]),
            "t_arr_covariance_s2": found.t_covariance[index].tolist(),
        }
