"""When a unit's effects happen and who may change what: claim, writes, final status; own sections only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.catalog.publisher import Publisher, PublishError, Staged, open_publisher
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.ingest.nodes import IntegrityCheck, MetadataExtract, ProvenanceEmit, StacRegister, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.batches import FolderFiles
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    CrashError,
    Failpoint,
    deliver,
    missing,
    put,
    run_chain,
    run_pending,
    truncated,
    volumes,
)
from kfm_dagster_tests.transactions import own_tx


@dataclass
class Recorder:
    """Side effects in order, each with the durable status of every unit at that moment."""

    pipeline: Pipeline | None = None
    seen: list[tuple[str, dict[str, Status]]] = field(default_factory=list)

    def note(self, effect: str) -> None:
        # A connection of its own: it sees what is committed and nothing else.
        self.seen.append((effect, {uri: record.status for uri, record in traces.records(self.pipeline).items()}))


@dataclass
class RecordedPublisher:
    """The catalog's publisher, watched."""

    inner: Publisher
    recorder: Recorder

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        return self.inner.read(paths)

    @contextmanager
    def staging(self, files: Mapping[str, bytes]) -> Iterator[Staged]:
        for path in files:
            self.recorder.note(f"stage {path}")
        with self.inner.staging(files) as staged:

            def promote(paths: Sequence[str]) -> Mapping[str, PublishError]:
                for path in paths:
                    self.recorder.note(f"promote {path}")
                return staged.promote(paths)

            yield staged._replace(promote=promote)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Watches catalog and lineage of every pipeline opened from now on."""
    found = Recorder()

    class RecordedFiles(FolderFiles):
        def publish(self, href: str, content: bytes) -> None:
            found.note(f"lineage publish {href}")
            super().publish(href, content)

    monkeypatch.setattr(
        "kfm_dagster.ingest.pipeline.open_publisher", lambda url: RecordedPublisher(open_publisher(url), found)
    )
    monkeypatch.setattr("kfm_dagster.lineage.store.open_files", lambda url: RecordedFiles(Path(url)))
    return found


OWN_SECTION = {
    IntegrityCheck.operator: "integrity",
    MetadataExtract.operator: "metadata",
    StacRegister.operator: "stac",
    ProvenanceEmit.operator: "provenance",
}


@pytest.mark.clause("WAL-02", "WAL-07", "BEY-03")
def test_writes_come_between_claim_and_final_status_and_a_node_changes_its_own_section_alone(
    recorder: Recorder, pipeline: Pipeline
) -> None:
    recorder.pipeline = pipeline
    sound, gone, half = volumes(2), missing(volumes(3)[2]), truncated(volumes(4)[3])
    deliver(pipeline, *sound, gone, half)
    rows: list[dict[str, Any]] = []
    outputs: dict[str, list[Envelope]] = {}

    def look(batch: StageBatch) -> None:
        recorder.note(f"done {batch.state.dataset_id}")
        rows.append({uri: record.model_dump() for uri, record in traces.records(pipeline).items()})
        outputs[batch.state.dataset_id.split(".")[1]] = list(batch.envelopes)

    run_pending(pipeline, "run-1", seen=look)

    effects = [effect for effect, _ in recorder.seen]
    claimed, settled = effects.index("done nexrad-l2.message_parse"), effects.index("done nexrad-l2.settle")
    writes = [(effect, statuses) for effect, statuses in recorder.seen if not effect.startswith("done")]
    kinds = {" ".join(effect.split()[:-1]) for effect, _ in writes}
    assert kinds == {"stage", "promote", "lineage publish"}
    assert (claimed, settled) == (0, len(effects) - 1)
    every_unit = {item.uri: Status.IN_PROGRESS for item in (*sound, gone, half)}
    assert {effect: statuses for effect, statuses in writes if statuses != every_unit} == {}
    final = recorder.seen[-1][1]
    assert [final[item.uri] for item in (*sound, gone, half)] == [Status.SUCCEEDED] * 2 + [Status.FAILED] * 2
    for item in sound:
        history = own_tx(pipeline.ledger).history(traces.records(pipeline)[item.uri].wal_id)
        assert [entry.to_status for entry in history] == [Status.PENDING, Status.IN_PROGRESS, Status.SUCCEEDED]

    first, *between, last = rows
    assert all(row == first for row in between)
    assert {record["version"] for record in first.values()} == {2}
    assert {record["version"] for record in last.values()} == {3}
    changed: set[str] = set()
    for before, after in pairwise(operators()):
        section = OWN_SECTION.get(after)
        for old, new in zip(outputs[before], outputs[after], strict=True):
            assert (traces.without(old, section) if section else old) == (
                traces.without(new, section) if section else new
            ), after
            changed |= {section} if section and old != new else set()
    assert changed == set(OWN_SECTION.values())


@pytest.mark.clause("WAL-02")
@pytest.mark.parametrize("taken_by", ["nobody yet", "another run"])
def test_a_run_that_lost_its_claims_writes_nothing(
    taken_by: str, recorder: Recorder, pipeline: Pipeline, objects: Path
) -> None:
    recorder.pipeline = pipeline
    put(objects, volumes(2))
    with pytest.raises(CrashError):
        run_chain(
            pipeline, "nexrad-l2", DAY.isoformat(), "lost",
            dies_at=Failpoint(operator=MetadataExtract.operator, point="committed"),
        )  # fmt: skip
    own_tx(pipeline.ledger).release_lost(run_ids=["lost"])
    if taken_by == "another run":
        own_tx(pipeline.ledger).claim(dataset="nexrad-l2", partition=DAY.isoformat(), run_id="other", limit=1)
    before = traces.records(pipeline)

    late = run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "lost")
    assert late.state.validation_summary["lost"] == 2
    assert recorder.seen == []
    assert traces.records(pipeline) == before
