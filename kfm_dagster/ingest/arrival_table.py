"""The form of a day's table of arrivals: one row per radar volume and elevation, as Parquet.

Belongs here: the schema, and rows from what was computed. Does not belong here: the node that makes the table
(`path_arrivals.py`), or the beams (`path/`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.path.volume import PathArrival
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts

_TEXT, _NUMBER = pa.string(), pa.float64()
SCHEMA = pa.schema(
    [
        pa.field("wal_id", _TEXT, nullable=False),
        pa.field("object_uri", _TEXT, nullable=False),
        pa.field("site", _TEXT, nullable=False),
        pa.field("ts_start", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("elevation_deg", _NUMBER, nullable=False),
        pa.field("geometry", _TEXT, nullable=False),
        pa.field("delta_form", _TEXT, nullable=False),
        pa.field("antenna_height_m", _NUMBER, nullable=False),
        pa.field("extent_m", _NUMBER, nullable=False),
        pa.field("end_height_m", _NUMBER, nullable=False),
        pa.field("end_distance_m", _NUMBER, nullable=False),
        pa.field("c_ref_m_s", _NUMBER, nullable=False),
        pa.field("lambda_ref_m", _NUMBER, nullable=False),
        pa.field("frequency_stated", pa.bool_(), nullable=False),
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


def to_parquet(found: Sequence[tuple[Envelope, PathArrival]]) -> bytes:
    """Encode one row per unit and elevation; the same arrivals give the same bytes under one pyarrow release."""
    rows = [row for unit, arrival in found for row in _rows(unit, arrival)]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, sink, compression="zstd", write_statistics=False)
    return bytes(sink.getvalue())


def read_table(artifacts: Artifacts, table: ArtifactReference) -> list[dict[str, Any]]:
    """Return the rows of a table. Raises ArtifactError when it is gone or another."""
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(artifacts.get(table))).to_pylist()
    return rows


def _rows(unit: Envelope, found: PathArrival) -> Iterator[dict[str, Any]]:
    facts = found.facts
    for place, (arrival, beam) in enumerate(zip(found.arrivals, found.beams, strict=True)):
        of_phase = found.phase_covariance[place]
        yield {
            "wal_id": unit.wal_id,
            "object_uri": unit.object_uri,
            "site": facts.site,
            "ts_start": unit.time_range_start,
            "elevation_deg": arrival.elevation_deg,
            "geometry": arrival.geometry.value,
            "delta_form": arrival.delta_form.value,
            "antenna_height_m": facts.antenna_height_m,
            "extent_m": arrival.extent_m,
            "end_height_m": float(beam.height_m[-1]),
            "end_distance_m": float(beam.distance_m[-1]),
            "c_ref_m_s": arrival.c_ref_m_s,
            "lambda_ref_m": arrival.lambda_ref_m,
            "frequency_stated": facts.frequency_mhz is not None,
            "optical_path_m": arrival.optical_path_m,
            "t_arr_s": arrival.t_arr_s,
            "t_arr_sigma_s": math.sqrt(of_phase[0, 0]),
            "phi_rad": arrival.phi_rad,
            "phi_sigma_rad": math.sqrt(of_phase[1, 1]),
            "phi_aligned_rad": arrival.phi_aligned_rad,
            "t_phi_covariance_s_rad": float(of_phase[0, 1]),
            "t_arr_covariance_s2": found.t_covariance[place].tolist(),
        }
