"""The node `path_arrival`: when the beams of a day's radar volumes arrive, as one table per day.

It reads what the chain's metadata nodes have stored, in whatever runs they did so, and stands beside the chain: no unit
waits for it, and none fails by it. Belongs here: the node, and the form of its table. Does not belong here: the beams
(`path/`), the gates' rules (`stages/gates/path_rules.py`), Dagster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.contracts.identity import moment
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.idempotent_node.node import NodeResult, run_node
from kfm_dagster.idempotent_node.transaction import Effect
from kfm_dagster.ingest.node import Operator
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.path.errors import PathError
from kfm_dagster.path.quantities import as_array_quantities
from kfm_dagster.path.refractivity import Floats
from kfm_dagster.path.volume import PathArrival, PathOptions, facts_of, path_arrival
from kfm_dagster.readers.nexrad_level2 import TIME_TOLERANCE
from kfm_dagster.stages.envelope_table import from_parquet
from kfm_dagster.stages.gates.path_rules import (
    covariance_consistency,
    dimensional_closure_of_path,
    path_conventions,
)
from kfm_dagster.stages.gates.verdict import Verdict
from kfm_dagster.storage.artifacts import ArtifactReference
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.measures import Volume

NODE = "path_arrival"
STEP = "table"
READER = "nexrad-level2"
"""The reader whose datasets have beams."""

Computed = tuple[Envelope, PathArrival]

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


@dataclass(frozen=True, kw_only=True)
class PathArrivals:
    """The node for one dataset and day. An `IdempotentNode`."""

    pipeline: Pipeline
    dataset: str
    partition: str
    options: PathOptions = field(default_factory=PathOptions)

    @property
    def name(self) -> str:
        """Key of its checkpoint."""
        return f"{self.kind}@{self.partition}"

    @property
    def kind(self) -> str:
        """What it is in every partition."""
        return f"{self.dataset}.{NODE}"

    @property
    def step(self) -> str:
        """Its one effect."""
        return STEP

    @cached_property
    def batches(self) -> tuple[ArtifactReference, ...]:
        """The day's batches of metadata, oldest first."""
        outputs = self.pipeline.nodes.outputs_of(f"{self.dataset}.{Operator.METADATA_EXTRACT}@{self.partition}")
        return tuple(
            ArtifactReference(uri=output.record["artifact_uri"], sha256=output.record["artifact_sha256"])
            for output in outputs
        )

    def inputs(self) -> Sequence[ManifestEntry]:
        """Return the day's batches of metadata."""
        return [ManifestEntry(uri=batch.uri, checksum=batch.sha256) for batch in self.batches]

    def params(self) -> Mapping[str, Any]:
        """Return every option of the beams."""
        options: dict[str, Any] = orjson.loads(orjson.dumps(self.options))
        return {"partition": self.partition, "tau_s": TIME_TOLERANCE.total_seconds(), **options}

    def context(self) -> Mapping[str, Any]:
        """Return what the node was made with."""
        return {"dataset": self.dataset, "partition": self.partition, "operator": NODE}

    def transform(self) -> Effect:
        """Compute the table of the day and store it under its digest."""
        found, refused = self._arrivals(self._units())
        verdicts = gates({unit.wal_id: arrival for unit, arrival in found})
        refused |= {f.wal_id: f"{v.gate}: {f.what}" for v in verdicts for f in v.findings if f.wal_id is not None}
        sound = [(unit, arrival) for unit, arrival in found if unit.wal_id not in refused]
        content = to_parquet(sound)
        artifact = self.pipeline.stages.artifacts.put(content, suffix="parquet")
        rows = sum(len(arrival.arrivals) for _, arrival in sound)
        return Effect(
            record={
                "artifact_uri": artifact.uri,
                "artifact_sha256": artifact.sha256,
                "units": len(sound),
                "rows": rows,
                "refused": dict(sorted(refused.items())),
                "gates": {verdict.gate.value: verdict.observed for verdict in verdicts},
            },
            volume=Volume(rows_in=len(sound) + len(refused), rows_out=rows, bytes_out=len(content)),
        )

    def apply(self, tx: Transaction, effect: Effect) -> None:
        """Nothing: the record names the table, and there is no other."""

    def verify(self, effect: Effect) -> None:
        """Read the table back. Raises ArtifactError when it is not there as written."""
        reference = ArtifactReference(uri=effect.record["artifact_uri"], sha256=effect.record["artifact_sha256"])
        self.pipeline.stages.artifacts.get(reference)

    def _units(self) -> list[Envelope]:
        """Return the day's units with sound metadata that are in the chain, as last seen, by site and time."""
        last = {
            unit.wal_id: unit
            for batch in self.batches
            for unit in from_parquet(self.pipeline.stages.artifacts.get(batch))
            if unit.metadata is not None
        }
        return sorted(
            (unit for unit in last.values() if unit.failure is None),
            key=lambda unit: (unit.key, unit.wal_id),
        )

    def _arrivals(self, units: Sequence[Envelope]) -> tuple[list[Computed], dict[WalId, str]]:
        found: list[Computed] = []
        refused: dict[WalId, str] = {}
        for unit, properties in ((unit, unit.metadata.stac_properties) for unit in units if unit.metadata):
            try:
                arrival = path_arrival(
                    facts_of(properties),
                    ts_start=unit.time_range_start,
                    reference=moment(properties["datetime"]),
                    tau=TIME_TOLERANCE,
                    options=self.options,
                )
            except PathError as error:
                refused[unit.wal_id] = str(error)
            else:
                found.append((unit, arrival))
        return found, refused


def compute_path_arrivals(pipeline: Pipeline, *, dataset: str, partition: str, run_id: str) -> NodeResult:
    """Compute a day's arrivals, or hand on the table of the same batches, options and code."""
    node = PathArrivals(pipeline=pipeline, dataset=dataset, partition=partition)
    return run_node(pipeline.nodes, node, run_id=run_id, code=pipeline.code)


def gates(arrivals: Mapping[WalId, PathArrival]) -> tuple[Verdict, ...]:
    """Return what G3, G4 and G7 say of the arrivals."""
    return (
        path_conventions({wal_id: found.beams for wal_id, found in arrivals.items()}),
        dimensional_closure_of_path(
            {wal_id: [as_array_quantities(found.arrivals)] for wal_id, found in arrivals.items()}
        ),
        covariance_consistency({wal_id: _covariances(found) for wal_id, found in arrivals.items()}),
    )


def to_parquet(found: Sequence[Computed]) -> bytes:
    """Encode one row per unit and elevation; the same arrivals give the same bytes under one pyarrow release."""
    rows = [row for unit, arrival in found for row in _rows(unit, arrival)]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, sink, compression="zstd", write_statistics=False)
    return bytes(sink.getvalue())


def read_table(pipeline: Pipeline, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table that an output names. Raises ArtifactError when it is gone or another."""
    reference = ArtifactReference(uri=record["artifact_uri"], sha256=record["artifact_sha256"])
    content = pipeline.stages.artifacts.get(reference)
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(content)).to_pylist()
    return rows


def _covariances(found: PathArrival) -> dict[str, Floats]:
    of_beams = zip(found.arrivals, found.phase_covariance, strict=True)
    return {
        "T_arr over the elevations": found.t_covariance,
        **{f"T_arr and Phi at {arrival.elevation_deg:g} degrees": matrix for arrival, matrix in of_beams},
    }


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
