"""The invariants: the product must agree with an account of the world that is kept apart from it.

After every commit the account reads the database directly; it knows the written objects from the feed, and the
acting process from the scheduler. Each invariant is checked by a method of `Account`; the violation names the
invariant. Does not belong here: actions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.model import Retry
from kfm_dagster.ledger.deliveries import Deliveries
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.record import replay_history
from kfm_dagster_tests.ledger.bench import LEGAL
from kfm_dagster_tests.simulation.memory import rows
from kfm_dagster_tests.simulation.scheduling import Actor
from kfm_dagster_tests.simulation.services import Message
from kfm_dagster_tests.simulation.world import LEASE_SECONDS, UNITS_PER_RUN, World
from kfm_dagster_tests.transactions import own_tx

TERMINAL = frozenset({"succeeded", "quarantined"})
OVERRIDES = frozenset({("succeeded", "pending"), ("quarantined", "pending")})
HELD = {
    "claims": "SELECT wal_id FROM nodd_wal_records WHERE status = 'in_progress' AND ingest_run_id = ? AND dataset = ?",
    "items": "SELECT item_id FROM catalog_items JOIN catalog_promotions USING (promotion_id, item_id)"
    " WHERE run_id = ? AND dataset = ?",
    "lineage": "SELECT batch_id FROM lineage_batches JOIN lineage_emissions USING (batch_id)"
    " WHERE run_id = ? AND dataset = ? AND invalidated_by IS NULL",
    "outputs": "SELECT dataset_id FROM run_state WHERE run_id = ? AND dataset_id LIKE ? || '.%'"
    " AND artifact_uri IS NOT NULL AND validation_summary ->> '$.rolled_back_by' IS NULL",
}
"""Queries for what a run can hold of a dataset."""
LINEAGE_OF = (
    "SELECT lineage_id FROM lineage_emissions JOIN lineage_batches USING (batch_id)"
    " WHERE wal_id = ? AND content_sha256 = ? AND invalidated_by IS NULL"
)
"""The query for an Item's lineage."""
FULL_CHECK_EVERY = 25
"""The number of commits between two checks that replay every history."""


LOST = frozenset({"worker_lost", "lease_expired", "run_rolled_back"})
"""The reasons that end an attempt whose run died."""


class ViolationError(BaseException):
    """An invariant does not hold. `invariant` is its name. The product must not catch it."""

    def __init__(self, invariant: str, detail: str) -> None:
        self.invariant = invariant
        super().__init__(f"{invariant}: {detail}")


class Change(NamedTuple):
    """A row of the history."""

    place: int
    wal_id: str
    version: int
    at: str
    from_status: str | None
    to_status: str
    reason: str
    run_id: str | None
    attempts: int


class RecordState(NamedTuple):
    """The current state of a record."""

    wal_id: str
    status: str
    version: int
    attempts: int
    run_id: str | None
    dataset: str


class Shown(NamedTuple):
    """An Item of the catalog: its unit, its promotion and its content."""

    wal_id: str
    revision: int
    promotion_id: int
    content_sha256: str


@dataclass(kw_only=True)
class Unit:
    """The account's state of one unit."""

    status: str
    version: int
    attempts: int
    run_id: str | None
    error_code: str | None = None
    overrides: int = 0
    superseded: bool = False
    lost: int = 0
    """Attempts that ended because their run died or was rolled back."""


@dataclass(eq=False)
class Account:
    """The account of one world."""

    world: World
    units: dict[str, Unit] = field(default_factory=dict)
    off: set[str] = field(default_factory=set)
    """Datasets that a commit switched off; `*` is all."""
    _leases: dict[tuple[str, str], str] = field(default_factory=dict)
    _newest_success: dict[str, tuple[str, int]] = field(default_factory=dict)
    _items: Mapping[str, Shown] = field(default_factory=dict)
    _in_flight: dict[str, set[Message]] = field(default_factory=lambda: defaultdict(set))
    _seen_changes: int = 0
    _seen_lineage: set[tuple[str, str, str]] = field(default_factory=set)
    _seen_governance: int = 0
    _seen_rollback: int = 0
    _total_changes: int = -1
    _commits: int = 0

    def __post_init__(self) -> None:
        self.world.broker.watcher = self
        self._raw = self.world.template.raw
        self._queries = LedgerQueries(self.world.database)
        self._deliveries = Deliveries(self.world.database, clock=lambda: self.world.scheduler.now)
        self._datasets = {contract.id: contract for contract in self.world.registry}

    # Notifications by the world.

    def received(self, message: Message) -> None:
        """Note that a message was delivered: from now on its units must end."""
        message.done = {wal_id for wal_id in message.units if self._is_terminal(wal_id)}
        for wal_id in message.units:
            self._in_flight[wal_id].add(message)

    def deleted(self, message: Message) -> None:
        """Check a message that is about to be deleted."""
        self.deleted_messages_are_done(message)
        for wal_id in message.units:
            self._in_flight[wal_id].discard(message)

    def committed(self, actor: Actor) -> None:
        """Check a committed transaction of an actor."""
        if self._raw.total_changes == self._total_changes:
            return
        self._total_changes = self._raw.total_changes
        self._commits += 1
        self._note_leases(actor)
        changes = self._new_changes()
        records = self._records()
        governed = self._governed()
        for change in changes:
            self._check_change(change, actor, records, governed)
            self._apply(change)
        self._note_switches()
        self.history_matches_the_records(records.values())
        self._note_supersessions(records)
        self.catalog_is_written_by_holders_and_never_goes_back(actor, records)
        self.lineage_is_recorded_by_holders(actor, records)
        self.run_state_has_the_output_of_its_stage()
        self.rollbacks_leave_nothing()
        self.nothing_is_lost()
        self.nothing_sound_is_refused()
        if self._commits % FULL_CHECK_EVERY == 0:
            self.check_all()

    def check_all(self) -> None:
        """Run the checks that are too slow for every commit."""
        self.histories_rebuild_the_records()
        self.repetitions_give_equal_results()

    def finished(self) -> None:
        """Run the final checks, once the faults are over and every unit had time to end."""
        self.check_all()
        self.every_unit_ends()
        self.lineage_is_read_once()

    # Invariants.

    def transitions_are_legal(self, change: Change) -> None:
        """WSM-02: only transitions of the state machine, each from the unit's status."""
        unit = self.units.get(change.wal_id)
        status = None if unit is None else unit.status
        if (change.from_status, change.to_status) not in LEGAL | OVERRIDES or change.from_status != status:
            raise ViolationError("transitions_are_legal", f"{change}, the status was {status}")

    def overrides_are_decided(self, change: Change, governed: set[tuple[str, int]]) -> None:
        """WSM-16: every transition out of a terminal state has a row in the governance log."""
        if (change.from_status, change.to_status) in OVERRIDES and (change.wal_id, change.version) not in governed:
            raise ViolationError("overrides_are_decided", str(change))

    def attempts_count_claims(self, change: Change) -> None:
        """WAL-09: only a claim adds an attempt."""
        before = self.units[change.wal_id].attempts if change.wal_id in self.units else 0
        if change.attempts != before + (change.to_status == "in_progress"):
            raise ViolationError("attempts_count_claims", f"{change}, attempts before: {before}")

    def attempts_are_bounded(self, change: Change, dataset: str) -> None:
        """WAL-10: a unit is readmitted only while its contract has attempts left, or by an override.

        A run that dies with several units uses none of their attempts until halving leaves batches of one (SEC-09).
        """
        unit = self.units.get(change.wal_id)
        if unit is None:
            return
        retry: Retry = self._datasets[dataset].retry
        if (change.from_status, change.to_status) == ("failed", "pending"):
            spared = min(unit.lost, 1 + UNITS_PER_RUN.bit_length()) if unit.error_code in LOST else 0
            granted = retry.attempts_for(unit.error_code or "") + spared
            if unit.attempts >= granted:
                raise ViolationError("attempts_are_bounded", f"{change}: {unit.attempts} of {granted} are used")
        if change.attempts > retry.max_attempts + unit.overrides + unit.lost:
            raise ViolationError("attempts_are_bounded", f"{change}, {unit.overrides} overrides")

    def superseded_units_stay_out(self, change: Change) -> None:
        """BEY-01: a superseded version is readmitted or claimed only by a person's decision."""
        unit = self.units.get(change.wal_id)
        arrows = {("failed", "pending"), ("pending", "in_progress")}
        if unit is None or not unit.superseded or unit.overrides:
            return
        if (change.from_status, change.to_status) in arrows:
            raise ViolationError("superseded_units_stay_out", str(change))

    def switched_off_datasets_stay_unchanged(self, action: str, dataset: str) -> None:
        """WAL-10: a dataset that is switched off has no claim, readmission or effect."""
        if self.off & {dataset, "*"}:
            raise ViolationError(
                "switched_off_datasets_stay_unchanged", f"{action} of {dataset} while {self.off} is off"
            )

    def only_the_holder_settles(self, change: Change, actor: Actor) -> None:
        """BEY-02: an attempt is ended only by its worker, its run's rollback, or a recovery."""
        unit = self.units.get(change.wal_id)
        if unit is None or change.from_status != "in_progress" or change.reason in {"worker_lost", "lease_expired"}:
            return
        if actor.run_id == unit.run_id and change.reason == "run_rolled_back":
            return
        if actor.run_id != unit.run_id or actor.attempts.get(change.wal_id) != unit.attempts:
            raise ViolationError("only_the_holder_settles", f"{actor.name} ended {change} of {unit}")

    def claims_are_taken_only_when_lost(self, change: Change, actor: Actor, dataset: str) -> None:
        """WSM-11: a recovery revokes a claim only if it named the run dead or the lease has expired."""
        if change.reason == "worker_lost" and change.run_id not in actor.named_dead:
            raise ViolationError("claims_are_taken_only_when_lost", f"{change}: no recovery named the run")
        if change.reason == "lease_expired":
            lease = self._leases.get((change.run_id or "", dataset), "")
            if lease >= change.at:
                raise ViolationError("claims_are_taken_only_when_lost", f"{change}: its lease lasts until {lease}")

    def history_matches_the_records(self, records: Iterable[RecordState]) -> None:
        """WSM-17: each history gives its record; no record lacks a history, and no history lacks a record."""
        count = 0
        for record in records:
            count += 1
            unit = self.units.get(record.wal_id)
            expected = unit and (unit.status, unit.version, unit.attempts, unit.run_id)
            if expected != (record.status, record.version, record.attempts, record.run_id):
                raise ViolationError("history_matches_the_records", f"{record} is {unit} by its history")
        if count != len(self.units):
            raise ViolationError("history_matches_the_records", f"{len(self.units)} units, {count} records")

    def older_versions_are_superseded(self, records: dict[str, RecordState]) -> None:
        """BEY-01: all versions of an object in the ledger but the newest are marked superseded."""
        for wal_id, unit in self.units.items():
            newer = [other for other in self.world.feed.newer(wal_id) if other in records]
            if newer and not unit.superseded:
                raise ViolationError("older_versions_are_superseded", f"{wal_id} is not superseded by {newer}")

    def catalog_is_written_by_holders_and_never_goes_back(self, actor: Actor, records: dict[str, RecordState]) -> None:
        """BEY-02, BEY-01: an Item is written under a claim; only a permitted undo reverts it."""
        items = rows(self._raw, "SELECT item_id, wal_id, revision, promotion_id, content_sha256 FROM catalog_items")
        shown = {item_id: Shown(*row) for item_id, *row in items}
        for item_id in sorted(self._items.keys() | shown.keys()):
            before, now = self._items.get(item_id), shown.get(item_id)
            if before is not None and (now is None or now.revision < before.revision):
                self._check_undo(item_id, before, actor, records)
            elif now is not None and now != before:
                self._written_by_holder("catalog", now.wal_id, actor, records)
                order = self.world.feed.versions[now.wal_id].order
                if before is not None and order < self.world.feed.versions[before.wal_id].order:
                    raise ViolationError("items_are_the_newest_version", f"{item_id} went from {before} to {now}")
        self._items = shown
        for item_id, newest in self._newest_success.items():
            registered = self._items.get(item_id)
            if registered is None or self.world.feed.versions[registered.wal_id].order < newest:
                raise ViolationError("items_are_the_newest_version", f"{item_id} is {registered}, success {newest}")

    def lineage_is_recorded_by_holders(self, actor: Actor, records: dict[str, RecordState]) -> None:
        """BEY-02: lineage is recorded under a current claim; a succeeded unit has both paths."""
        recorded = set(rows(self._raw, "SELECT wal_id, path, revision FROM lineage_emissions"))
        for wal_id, _, _ in recorded - self._seen_lineage:
            self._written_by_holder("lineage", wal_id, actor, records)
        self._seen_lineage = recorded
        paths = {(wal_id, path) for wal_id, path, _ in recorded}
        for record in records.values():
            if record.status == "succeeded" and not {(record.wal_id, "openlineage"), (record.wal_id, "prov")} <= paths:
                raise ViolationError("successes_have_lineage", f"{record}")

    def run_state_has_the_output_of_its_stage(self) -> None:
        """PCS-04: if a stage's newest attempt succeeded, run-state has the output of a successful attempt.

        If several attempts had the same inputs, it is the output of the first: a success is not overwritten.
        """
        differing = rows(
            self._raw,
            "SELECT stage, stage_state.run_id, attempt, output_sha256, artifact_sha256 FROM stage_state"
            " LEFT JOIN run_state ON dataset_id = stage AND run_state.run_id = stage_state.run_id"
            " WHERE state = 'succeeded' AND attempt = (SELECT max(attempt) FROM stage_state AS newest"
            "  WHERE newest.stage = stage_state.stage AND newest.run_id = stage_state.run_id)"
            " AND NOT EXISTS (SELECT 1 FROM stage_state AS one WHERE one.stage = stage_state.stage"
            "  AND one.run_id = stage_state.run_id AND one.output_sha256 = artifact_sha256)"
            " AND validation_summary ->> '$.rolled_back_by' IS NULL",
        )
        if differing:
            raise ViolationError("run_state_has_the_output_of_its_stage", str(differing))

    def rollbacks_leave_nothing(self) -> None:
        """PCS-03: a rolled-back run holds no unit, Item, lineage or output of the dataset."""
        rolled_back = rows(
            self._raw,
            "SELECT seq, run_id, stage FROM stage_audit WHERE event = 'run rolled back' AND seq > ? ORDER BY seq",
            self._seen_rollback,
        )
        for seq, run_id, stage in rolled_back:
            held = {name: rows(self._raw, sql, run_id, stage.partition(".")[0]) for name, sql in HELD.items()}
            if any(held.values()):
                raise ViolationError("rollbacks_leave_nothing", f"{stage} in {run_id}: {held}")
            self._seen_rollback = seq

    def lineage_is_read_once(self) -> None:
        """WAL-05, BEY-07: readers find every recorded event once, after any failure or crash."""
        published = self.world.lineage_files.events()
        failures = {event["run"]["runId"] for event in published if event["eventType"] == "FAIL"}
        events = Counter((event["run"]["runId"], event["eventType"]) for event in published)
        recorded = {
            lineage_id
            for (lineage_id,) in rows(self._raw, "SELECT lineage_id FROM lineage_emissions WHERE path = 'openlineage'")
        }
        if {run_id for run_id, _ in events} - failures != recorded or (events and max(events.values()) > 1):
            raise ViolationError("lineage_is_read_once", f"{len(recorded)} recorded, {events.most_common(1)} read")
        # The database notes a failed attempt with its failure; a later tick records it as lineage and publishes it.
        [(noted, recorded_failures)] = rows(self._raw, "SELECT count(*), count(batch_id) FROM lineage_failures")
        [(failed,)] = rows(self._raw, "SELECT count(*) FROM nodd_wal_transitions WHERE to_status = 'failed'")
        if noted != failed or len(failures) != recorded_failures:
            detail = f"{failed} attempts failed, {noted} noted, {recorded_failures} recorded, {len(failures)} read"
            raise ViolationError("lineage_is_read_once", detail)

    def deleted_messages_are_done(self, message: Message) -> None:
        """WSM-09: a message is deleted only once its units have ended or a copy is on a queue."""
        missing = message.units - message.done
        if not missing and not message.body.startswith("{poison"):
            return
        others = (other for queue in self.world.broker.queues.values() for other in queue.values())
        if not any(other is not message and other.body == message.body for other in others):
            raise ViolationError("deleted_messages_are_done", f"{message.message_id} without {sorted(missing)}")

    def nothing_is_lost(self) -> None:
        """BEY-03: every received unit and message is accounted for."""
        balance = self._deliveries.conservation()
        if balance.residual_units or balance.residual_messages or balance.units_received != len(self.units):
            raise ViolationError("nothing_is_lost", f"{balance}, {len(self.units)} units")
        broker = self.world.broker
        on_queues = {message_id for queue in broker.queues.values() for message_id in queue}
        open_rows = rows(
            self._raw, "SELECT message_id FROM nodd_wal_deliveries WHERE state NOT IN ('deleted', 'in_flight')"
        )
        # A redrive sends a copy, then deletes the message, and only then records this.
        moved = {message.message_id for message in broker.deleted if message.body in broker.sent_again}
        gone = [message_id for (message_id,) in open_rows if message_id not in on_queues | moved]
        if gone:
            raise ViolationError("nothing_is_lost", f"{gone} are on no queue")

    def nothing_sound_is_refused(self) -> None:
        """SEC-05: the database refuses no message of the feed, because all of them are valid."""
        refused = rows(
            self._raw, "SELECT message_id, detail FROM rejected_messages WHERE reason_code = 'database_refused'"
        )
        if refused:
            raise ViolationError("nothing_sound_is_refused", str(refused))

    def histories_rebuild_the_records(self) -> None:
        """WSM-17: replaying a history yields its record, field by field."""
        for wal_id in self.units:
            if replay_history(own_tx(self._queries).history(wal_id)) != own_tx(self._queries).get(wal_id):
                raise ViolationError("histories_rebuild_the_records", wal_id)

    def repetitions_give_equal_results(self) -> None:
        """WAL-11: the same object always gives the same Item and the same lineage."""
        if differing := own_tx(self._queries).mismatch_counts():
            raise ViolationError("repetitions_give_equal_results", str(differing))

    def every_unit_ends(self) -> None:
        """Liveness: at the end no unit, message or lineage batch is unfinished."""
        waiting = self.unfinished()
        if waiting:
            raise ViolationError("every_unit_ends", "; ".join(waiting))

    # Bookkeeping.

    def unfinished(self) -> list[str]:
        """Return a line for each unit, message and lineage batch that is not finished."""
        units = [f"{wal_id} is {unit.status}" for wal_id, unit in self.units.items() if unit.status not in TERMINAL]
        pending = [
            f"{message.message_id} is on {name}"
            for name, queue in self.world.broker.queues.items()
            for message in queue.values()
            if not message.body.startswith("{poison") or name != "kfm-nodd-dlq"
        ]
        unread = [
            f"{batch} is unread" for (batch,) in rows(self._raw, "SELECT subject FROM outbox WHERE topic = 'lineage'")
        ]
        return units + pending + unread

    def _check_change(
        self, change: Change, actor: Actor, records: dict[str, RecordState], governed: set[tuple[str, int]]
    ) -> None:
        dataset = records[change.wal_id].dataset
        self.transitions_are_legal(change)
        self.overrides_are_decided(change, governed)
        self.attempts_count_claims(change)
        self.attempts_are_bounded(change, dataset)
        self.superseded_units_stay_out(change)
        self.only_the_holder_settles(change, actor)
        self.claims_are_taken_only_when_lost(change, actor, dataset)
        if change.to_status == "in_progress" or (change.from_status, change.to_status) == ("failed", "pending"):
            self.switched_off_datasets_stay_unchanged(change.reason, dataset)

    def _written_by_holder(self, action: str, wal_id: str, actor: Actor, records: dict[str, RecordState]) -> None:
        record = records[wal_id]
        holds = record.status == "in_progress" and record.run_id == actor.run_id
        if not holds or actor.attempts.get(wal_id) != record.attempts:
            raise ViolationError("only_the_holder_writes", f"{actor.name} wrote {action} of {record}")
        self.switched_off_datasets_stay_unchanged(action, record.dataset)

    def _check_undo(self, item_id: str, before: Shown, actor: Actor, records: dict[str, RecordState]) -> None:
        """Check an undo: a run can undo its own Items, and any actor can undo the Items of an abandoned attempt."""
        sql = "SELECT run_id FROM catalog_promotions WHERE promotion_id = ?"
        if rows(self._raw, sql, before.promotion_id) == [(actor.run_id,)]:
            return
        lineage = rows(self._raw, LINEAGE_OF, before.wal_id, before.content_sha256)
        if records[before.wal_id].status != "quarantined" or lineage:
            raise ViolationError("only_the_holder_writes", f"{actor.name} took {before} of {item_id} back")

    def _apply(self, change: Change) -> None:
        unit = self.units.get(change.wal_id)
        error = change.reason if change.to_status == "failed" else unit and unit.error_code
        self.units[change.wal_id] = Unit(
            status=change.to_status,
            version=change.version,
            attempts=change.attempts,
            run_id=change.run_id,
            error_code=error,
            overrides=(unit.overrides if unit else 0) + ((change.from_status, change.to_status) in OVERRIDES),
            superseded=unit.superseded if unit else False,
            lost=(unit.lost if unit else 0) + (change.to_status == "failed" and change.reason in LOST),
        )
        happened = self.world.scheduler.happened
        happened[f"{change.from_status} > {change.to_status}"] += 1
        if change.reason in {"worker_lost", "lease_expired", "superseded", "stale_event", "attempts_exhausted"}:
            happened[change.reason] += 1
        if change.to_status in TERMINAL:
            for message in self._in_flight[change.wal_id]:
                message.done.add(change.wal_id)
        if change.to_status == "succeeded":
            version = self.world.feed.versions[change.wal_id]
            newest = self._newest_success.get(version.item_id, version.order)
            self._newest_success[version.item_id] = max(newest, version.order)

    def _note_leases(self, actor: Actor) -> None:
        """Record the end of each lease; only the holder may extend a lease, by the holder's clock."""
        ends = rfc3339(self.world.scheduler.now + actor.skew + timedelta(seconds=LEASE_SECONDS))
        leases = rows(self._raw, "SELECT ingest_run_id, dataset, expires_at FROM nodd_wal_leases")
        for run_id, dataset, expires_at in leases:
            if self._leases.get((run_id, dataset)) != expires_at:
                if actor.run_id != run_id or expires_at > ends:
                    raise ViolationError(
                        "leases_are_extended_by_their_holders", f"{actor.name} gave {run_id} until {expires_at}"
                    )
                self._leases[run_id, dataset] = expires_at

    def _note_switches(self) -> None:
        switches = rows(self._raw, "SELECT dataset FROM kill_switches WHERE released_at IS NULL")
        self.off = {dataset for (dataset,) in switches}

    def _note_supersessions(self, records: dict[str, RecordState]) -> None:
        for (wal_id,) in rows(self._raw, "SELECT older_wal_id FROM nodd_wal_supersessions"):
            self.units[wal_id].superseded = True
        self.older_versions_are_superseded(records)

    def _new_changes(self) -> list[Change]:
        changed = rows(
            self._raw,
            "SELECT rowid, wal_id, version, at, from_status, to_status, reason, run_id, attempts"
            " FROM nodd_wal_transitions WHERE rowid > ? ORDER BY rowid",
            self._seen_changes,
        )
        changes = [Change(*row) for row in changed]
        if changes:
            self._seen_changes = changes[-1].place
        return changes

    def _records(self) -> dict[str, RecordState]:
        records = rows(
            self._raw, "SELECT wal_id, status, version, attempts, ingest_run_id, dataset FROM nodd_wal_records"
        )
        return {row[0]: RecordState(*row) for row in records}

    def _governed(self) -> set[tuple[str, int]]:
        decisions = rows(
            self._raw,
            "SELECT entry_id, wal_id, record_version FROM governance_log"
            " WHERE entry_id > ? AND record_version IS NOT NULL AND change_ref IS NOT NULL",
            self._seen_governance,
        )
        if decisions:
            self._seen_governance = max(row[0] for row in decisions)
        return {(row[1], row[2]) for row in decisions}

    def _is_terminal(self, wal_id: str) -> bool:
        return wal_id in self.units and self.units[wal_id].status in TERMINAL
