"""The node `path_arrival`: arrivals of a day's radar beams, as two Parquet tables.

The node reads the stored outputs of the metadata nodes of all runs. It is not part of the chain, so no unit waits for
the node or fails because of it. But it is a stage, and the pipeline card decides the effects of its gates G3, G4 and
G7. The output batch has the units with their failures; the first table has the computed arrivals. Volumes of the same
site and scan pattern have the same paths, so the second table has each path once, under the digest of its arrays.
Belongs here: the node, its due days, and the tables' schemas and rows. Does not belong here: the beams (`path/`), the
gates' rules (`stages/gates/path_rules.py`), requesting a day from Dagster (`defs/sensors.py`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MetadataExtract
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.path.arrival import Arrival
from kfm_dagster.path.beam import BeamPath
from kfm_dagster.path.quantities import as_array_quantities
from kfm_dagster.path.refractivity import Floats, PathError
from kfm_dagster.path.volume import PathArrival, PathOptions, facts_of, path_arrival
from kfm_dagster.readers.nexrad_level2 import TIME_TOLERANCE
from kfm_dagster.readers.nexrad_radar import WSR_88D
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.envelope_table import from_parquet
from kfm_dagster.stages.gates.path_rules import (
    covariance_consistency,
    dimensional_closure_of_path,
    path_conventions,
    path_dim_report,
)
from kfm_dagster.stages.gates.verdict import Gate, Verdict, of_every_gate
from kfm_dagster.storage.artifacts import ArtifactReference
from kfm_dagster.storage.database import Transaction

ARRIVALS_AT_ONCE = 2_000
PATHS_AT_ONCE = 20
"""Rows of a row group. They are in memory as Python values: some 10 MB for each of the two tables. A day of the whole
network has 560,000 rows and 2,000 paths of 2,000 points."""

_TEXT, _NUMBER = pa.string(), pa.float64()
ARRIVALS = pa.schema(
    [
        pa.field("wal_id", _TEXT, nullable=False),
        pa.field("object_uri", _TEXT, nullable=False),
        pa.field("site", _TEXT, nullable=False),
        pa.field("ts_start", pa.timestamp("us", tz="UTC"), nullable=False),
        # Start of the volume minus its reference time, the Item's `datetime`.
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
        # Window of the path over which the mean of the aligned phase is zero: begin and end, as path lengths.
        pa.field("reference_window_m", pa.list_(_NUMBER, 2), nullable=False),
        pa.field("optical_path_m", _NUMBER, nullable=False),
        pa.field("t_arr_s", _NUMBER, nullable=False),
        pa.field("t_arr_sigma_s", _NUMBER, nullable=False),
        pa.field("phi_rad", _NUMBER, nullable=False),
        pa.field("phi_sigma_rad", _NUMBER, nullable=False),
        pa.field("phi_aligned_rad", _NUMBER, nullable=False),
        pa.field("t_phi_covariance_s_rad", _NUMBER, nullable=False),
        # A row of the covariance of T_arr over the unit's elevations, in the order of the unit's rows.
        pa.field("t_arr_covariance_s2", pa.list_(_NUMBER), nullable=False),
    ]
)
_OF_ARRIVAL = [column.name for column in fields(Arrival) if column.name in ARRIVALS.names]
PATHS = pa.schema(
    [
        pa.field("path_id", _TEXT, nullable=False),
        # Lists of equal length; at each ell: ground distance and height above the sea, path element, refractive index.
        pa.field("ell_m", pa.list_(_NUMBER), nullable=False),
        pa.field("gamma_ell_m", pa.list_(pa.list_(_NUMBER, 2)), nullable=False),
        pa.field("d_ell_m", pa.list_(_NUMBER), nullable=False),
        pa.field("n_eff", pa.list_(_NUMBER), nullable=False),
    ]
)


def to_parquet(computed: Sequence[tuple[Envelope, PathArrival]]) -> tuple[bytes, bytes]:
    """Encode both tables; equal arrivals give equal bytes under the same pyarrow release."""
    paths: dict[str, BeamPath] = {}
    # Volumes of a site and pattern share their beams, and each digest is computed only once.
    ids: dict[BeamPath, str] = {}
    for beam in (beam for _, arrival in computed for beam in arrival.beams):
        if beam not in ids:
            paths.setdefault(ids.setdefault(beam, _digest(beam)), beam)
    arrivals = (row for unit, arrival in computed for row in _rows(unit, arrival, ids))
    return (
        _encoded(arrivals, ARRIVALS, at_once=ARRIVALS_AT_ONCE),
        _encoded((_path_row(path_id, paths[path_id]) for path_id in sorted(paths)), PATHS, at_once=PATHS_AT_ONCE),
    )


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


def _rows(unit: Envelope, arrivals: PathArrival, ids: Mapping[BeamPath, str]) -> Iterator[dict[str, Any]]:
    facts = arrivals.facts
    for index, (arrival, beam) in enumerate(zip(arrivals.arrivals, arrivals.beams, strict=True)):
        covariance = arrivals.phase_covariance[index]
        yield {
            "wal_id": unit.wal_id,
            "object_uri": unit.object_uri,
            "site": facts.site,
            "ts_start": unit.time_range_start,
            "path_id": ids[beam],
            "antenna_height_m": facts.antenna_height_m,
            "end_height_m": float(beam.height_m[-1]),
            "end_distance_m": float(beam.distance_m[-1]),
            "frequency_stated": facts.frequency_mhz is not None,
            "t_arr_sigma_s": math.sqrt(covariance[0, 0]),
            "phi_sigma_rad": math.sqrt(covariance[1, 1]),
            "t_phi_covariance_s_rad": float(covariance[0, 1]),
            "t_arr_covariance_s2": arrivals.t_covariance[index].tolist(),
            **{name: getattr(arrival, name) for name in _OF_ARRIVAL},
        }


NODE = "path_arrival"
READER = "nexrad-level2"
"""The reader of datasets with beams."""
LOOKS_BACK = timedelta(days=2)
"""Maximum age of metadata for which the sensor requests a day. A person can request any day."""
PAUSE = timedelta(minutes=10)
"""Least time between two tables of a day, because its volumes may arrive singly."""
AT_WORK = (Status.PENDING, Status.IN_PROGRESS, Status.FAILED)
GATES = (Gate.G3, Gate.G4, Gate.G7)
"""The gates that check the path quantities."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathDay:
    """A dataset's day to compute; `content_hash` is the hash of its newest metadata."""

    dataset: str
    day: str
    content_hash: str


@dataclass(kw_only=True)
class PathArrivals(ChainNode):
    """The node for a dataset and day; it claims no units and needs no batch."""

    operator = NODE
    asset = NODE
    description = (
        "Arrival times and phases of the day's radar beams, with covariances: one row per volume and elevation. "
        "Computed from all metadata of the day, whichever run extracted them; ingest does not wait for the result."
    )
    required_gates = GATES

    options: PathOptions = field(default_factory=PathOptions)
    _paths: dict[WalId, PathArrival] = field(default_factory=dict, init=False)
    _refused: dict[WalId, str] = field(default_factory=dict, init=False)
    _tables: dict[str, Any] = field(default_factory=dict, init=False)

    @override
    def holds_units(self, tx: Transaction) -> bool:
        # The node claims no units. If this were False, a rerun would be skipped and would not read newer metadata.
        return True

    @cached_property
    def batches(self) -> tuple[ArtifactReference, ...]:
        """The day's batches of metadata, oldest first; a retry uses the previous attempt's batches."""
        outputs = self.pipeline.nodes.outputs_of(f"{self.dataset}.{MetadataExtract.operator}@{self.partition}")
        batches = [
            ArtifactReference(uri=output.record["artifact_uri"], sha256=output.record["artifact_sha256"])
            for output in outputs
        ]
        with self.pipeline.database.snapshot() as tx:
            last = self.pipeline.stages.lifecycle.store.newest(self.run_id, self.kind, tx=tx)
        retried = last is not None and last.state is not StageState.SUCCEEDED
        return tuple(batch for batch in batches if last is None or not retried or batch.sha256 in last.input_hashes)

    @override
    def inputs(self) -> Sequence[ManifestEntry]:
        return [ManifestEntry(uri=batch.uri, checksum=batch.sha256) for batch in self.batches]

    @override
    def params(self) -> Mapping[str, Any]:
        options: dict[str, Any] = orjson.loads(orjson.dumps(self.options))
        # The contract is left out: it only determines the metadata, and their digests are in the inputs.
        return {"partition": self.partition, "tau_s": TIME_TOLERANCE.total_seconds(), **options}

    @override
    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    @override
    def transform(self) -> list[Envelope]:
        units = self._units()
        for unit in units:
            self._arrive(unit)
        # The metadata remain in the batches they came from.
        return [unit.evolve(integrity=None, metadata=None) for unit in units]

    @override
    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        rules = self.pipeline.card.machine.gates
        return of_every_gate(
            (
                path_conventions(
                    {wal_id: volume.beams for wal_id, volume in self._paths.items()},
                    refused=self._refused,
                    min_points=rules.G3.min_points,
                    sample_m={wal_id: volume.sample_m for wal_id, volume in self._paths.items()},
                ),
                dimensional_closure_of_path(_quantities(self._paths), min_p_dim=rules.G4.min_p_dim),
                covariance_consistency(
                    _covariances(self._paths),
                    residuals={wal_id: volume.residuals for wal_id, volume in self._paths.items()},
                    k_sigma=rules.G7.k_sigma,
                    min_share=rules.G7.min_share,
                ),
            ),
            maker=of,
        )

    @override
    def apply(self, tx: Transaction, units: list[Envelope], /) -> list[Envelope]:
        """Store the passed units' tables under their digests, before the commit that names them."""
        rows = [(unit, self._paths[unit.wal_id]) for unit in units if unit.wal_id in self._paths and not unit.failure]
        table, paths = (self.pipeline.artifacts.put(content, suffix="parquet") for content in to_parquet(rows))
        self._tables = {
            "rows": sum(len(arrival.arrivals) for _, arrival in rows),
            "product": {"uri": table.uri, "sha256": table.sha256},
            "paths": {"uri": paths.uri, "sha256": paths.sha256},
            "quantities": path_dim_report(_quantities({unit.wal_id: volume for unit, volume in rows})),
        }
        return units

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the units whose beams could not be computed."""
        # The run contract counts the units that a gate dropped.
        failed = sum(1 for unit in batch if unit.wal_id in self._refused and unit.failure is None)
        return ValidationSummary(checks=len(batch), passed=len(batch) - failed, failed=failed, extra=self._tables)

    def _units(self) -> list[Envelope]:
        """Return the day's WSR-88D volumes that have not failed, with their newest metadata, by key.

        Paths are computed only for this radar's band and range gates (`path/volume.py`).
        """
        newest = {
            unit.wal_id: unit
            for batch in self.batches
            for unit in from_parquet(self.pipeline.artifacts.get(batch))
            if unit.metadata is not None and unit.metadata.stac_properties.get("platform") == WSR_88D.name
        }
        return sorted(
            (unit for unit in newest.values() if unit.failure is None),
            key=lambda unit: (unit.key, unit.wal_id),
        )

    def _arrive(self, unit: Envelope) -> None:
        properties = unit.metadata.stac_properties if unit.metadata else {}
        try:
            self._paths[unit.wal_id] = path_arrival(
                facts_of(properties),
                ts_start=unit.time_range_start,
                reference=datetime.fromisoformat(properties["datetime"]),
                tau=TIME_TOLERANCE,
                options=self.options,
            )
        except PathError as error:
            self._refused[unit.wal_id] = str(error)


def product_of(summary: Mapping[str, Any], table: str = "product") -> ArtifactReference:
    """Return a table's address in the validation summary: `product` (arrivals) or `paths`."""
    return ArtifactReference(**summary[table])


def _quantities(volumes: Mapping[WalId, PathArrival]) -> dict[WalId, list[dict[str, Any]]]:
    return {wal_id: [as_array_quantities(volume.arrivals)] for wal_id, volume in volumes.items()}


def _covariances(volumes: Mapping[WalId, PathArrival]) -> dict[WalId, dict[str, Floats]]:
    shared: dict[int, dict[str, Floats]] = {}  # by identity: volumes of a site and pattern share a matrix
    for volume in volumes.values():
        if id(volume.phase_covariance) not in shared:
            beams = zip(volume.arrivals, volume.phase_covariance, strict=True)
            shared[id(volume.phase_covariance)] = {
                "T_arr over the elevations": volume.t_covariance,
                **{f"T_arr and Phi at {arrival.elevation_deg:g} degrees": matrix for arrival, matrix in beams},
            }
    return {wal_id: shared[id(volume.phase_covariance)] for wal_id, volume in volumes.items()}


def radars(registry: ContractRegistry) -> list[DatasetContract]:
    """Return the datasets of radar volumes."""
    return [contract for contract in registry if contract.metadata_extract.reader == READER]


def days_to_compute(ledger: Ledger, nodes: IdempotentNodes, *, at: datetime) -> list[PathDay]:
    """Return the days that have new metadata, only ended units, and no table within PAUSE."""

    def has_ended(dataset: str, day: str) -> bool:
        counts = ledger.day(dataset=dataset, partition=day).counts
        return not any(counts[status] for status in AT_WORK)

    return [
        PathDay(dataset=contract.id, day=day, content_hash=output.content_hash)
        for contract in radars(ledger.registry)
        for day, output in nodes.outputs_ahead(
            f"{contract.id}.{MetadataExtract.operator}",
            later=f"{contract.id}.{NODE}",
            since=at - LOOKS_BACK,
            before=at - PAUSE,
        ).items()
        if output.record["units"] and has_ended(contract.id, day)
    ]
