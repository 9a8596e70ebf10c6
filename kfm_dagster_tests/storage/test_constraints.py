"""Every named constraint of the schema refuses a violation without help of a trigger, on both databases.

Each case is a row with one fault. Triggers are disabled, because most triggers would refuse the row first;
`test_guards.py` and other tests cover the triggers. A constraint without a case fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import migrations
from kfm_dagster.telemetry.measures import MEASURES

T, LATER = "2025-12-03T12:00:00.000000Z", "2025-12-03T13:00:00.000000Z"
DAY = "2025-12-03"
ONE, TWO, THREE = (f"00000000-0000-8000-8000-{number:012d}" for number in (1, 2, 3))
HASH = "a" * 64
EVIDENCE = {"evidence_uri": f"evidence/aa/{HASH}.json", "evidence_sha256": HASH, "collected_at": T}

Row = Mapping[str, Any]

NO_CHANGE: Row = {"record_version": None, "from_status": None, "to_status": None}

VALUES: list[tuple[Any, str]] = [
    (1, "version receive_count records content_bytes before_revision old_page page revision promotion_id items taken"),
    (1, "unit_count proposal_id seen objects attempt batches batch selected_version quarantined_version rows_in"),
    (1, "rows_out bytes_in bytes_out seq observed notifications"),
    ("{}", "validation_summary extension fields old_summaries summaries details classes leads spec record lineage"),
    ("{}", "payload"),
    (0, "attempts record_index over_antimeridian over_greenwich mismatches_seen position requests listed created"),
    (0, "requeued turn failures"),
    (1.0, "amount old_west old_south old_east old_north seconds cpu_seconds energy_kwh carbon_gco2e cost_usd"),
    (T, "event_time time_range_start time_range_end followed_since hour first_seen valid_from level_since"),
    ("unknown", "integrity_status metadata_status stac_status provenance_status"),
    ("1", "value href code_version"),
    ("d.o", "dataset_id stage place"),
    ("", "label precedence sequencer"),
    (2, "change_id record_version expected"),
    ("[]", "earlier input_hashes restricted"),
    ("r", "run_id ingest_run_id"), (ONE, "wal_id older_wal_id"), ("d", "dataset subject"), (DAY, "partition_key day"),
    ("c1", "collection_id clock_id"), ("p", "property product"), (False, "known superseded"),
    ("p1", "replay_run_id backfill_id"), ("first_day", "fact"), ("main", "lakefs_branch"), ("success", "outcome"),
    ("audit", "code"), ("s3://b/1", "object_uri"), ("aws", "provider"), ("APPLIED", "status"), ("normal", "priority"),
    ("2.1", "schema_version"), ("live", "lane"), ("pending", "to_status"), ("nodd_sns_wal_conflicts", "metric"),
    ("m1", "message_id"), ("open", "state"), ("unchecked", "signature"), (b"x", "content"), ("i1", "item_id"),
    ("created", "kind"), ("b1", "batch_id"), ("openlineage", "path"), ("none", "delivery"), ("release", "action"),
    ("quarantined", "from_status"), ("C-1", "change_ref"), ("2025-12", "month"), ("[1000]", "sizes"),
    (TWO, "newer_wal_id"), ("l1", "lineage_id"), ("failed-only", "mode"), ("dev", "env"),
    ("failed", "selected_status"), ("n1", "node"), ("G1", "event"), (HASH, "idempotency_key"),
    ("E_GATE", "error_class"), ("kernel", "source"), (0.1, "offset_seconds"), (0.5, "uncertainty_seconds"),
    ("unlock", "rule"), ("warning", "level"), ("alerts", "topic"), ("c 1", "consumer"), ("q", "queue"),
]  # fmt: skip
USUAL = {name: value for value, names in VALUES for name in names.split()}
"""The value of a column in any table; `_usual` has the values of times, digests and other texts."""

FILLED = {
    "run_state": "artifact_sha256",
    "nodd_wal_deliveries": "signature",
    "ignored_records": "dataset bucket object_key",
    "catalog_promotions": (
        "run_id before_revision before_sha256 old_page old_west old_south old_east old_north old_summaries"
    ),
    "catalog_items": "promotion_id",
    "catalog_changes": "content_sha256",
    "announcements": "taken_at",
    "governance_log": "wal_id record_version from_status to_status change_ref",
    "lineage_emissions": "content_sha256",
    "lineage_failures": "batch_id",
    "node_output": "lineage valid_from",
    "etl_wal": "applied_at",
    "etl_steps": " ".join(MEASURES),
    "stage_state": "started_at ended_at error_class",
    "clock_readings": "offset_seconds uncertainty_seconds",
    "alerts": "run_id last_notified_at",
    "outbox": "content",
}
"""Nullable columns with a value; the other nullable columns are null."""

OWN: dict[str, Sequence[Row]] = {
    "deployment": [{"value": DAY}],
    "run_state": [{"inputs_hash": f"sha256:{HASH}"}],
    "nodd_wal_records": [{"status": "pending"}, {"wal_id": TWO, "object_uri": "s3://b/2", "status": "pending"}],
    "nodd_wal_transitions": [{}, {"version": 2}, {"wal_id": TWO}],
    "metric_totals": [{}, {"metric": "nodd_wal_moves"}],
    "nodd_wal_deliveries": [
        {"state": "in_flight"}, {"message_id": "m3", "state": "in_flight", "signature": "verified"},
    ],
    "ignored_records": [{"reason": "sidecar"}],
    "catalog_promotions": [{}, {}],
    "lineage_batches": [{"state": "staged"}, {"batch_id": "b3", "href": "3", "state": "staged"}],
    "governance_log": [
        {}, {**NO_CHANGE, "action": "override_withdrawn", "proposal_id": 1, "wal_id": None, "change_ref": None},
    ],
    "kill_switches": [{"dataset": "a"}],
    "size_peers": [{"product": "site=KTLX"}],
    "nodd_gaps": [{"kind": "hole"}, {"kind": "silence", "seen": 0}],
    "nodd_wal_leases": [{"expires_at": LATER}],
    "nodd_wal_outcomes": [{}, {"attempt": 2}],
    "lineage_emissions": [{"revision": ""}],
    "replay_runs": [{"state": "running"}],
    "replay_units": [{"position": 1, "state": "selected"}],
    "backfill_days": [{"state": "waiting"}],
    "etl_wal": [{"run_id": ONE}],
    "etl_steps": [{"wal_id": 1}],
    "stage_audit": [{"kind": "gate", "previous_hash": "0" * 64}],
    "stage_state": [{"state": "failed"}],
    "clock_readings": [{"state": "locked"}],
    "alerts": [{"subject": "clock", "state": "firing"}],
    "outbox": [{"subject": "1"}],
}  # fmt: skip
"""The rows of tables that have several rows, or values other than the usual ones."""


def _usual(column: str) -> Any:
    if column == "at" or column.endswith("_at"):
        return T
    return HASH if column == "hash" or column.endswith(("sha256", "_hash")) else USUAL.get(column, "x")


def _columns() -> dict[str, list[str]]:
    """Return the columns with a value of each table, referenced tables first."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        for migration in migrations("sqlite"):
            for statement in migration.statements:
                connection.exec_driver_sql(statement)
        schema = sa.inspect(connection)
        return {
            table: [
                column["name"]
                for column in schema.get_columns(table)
                if not column["nullable"] or column["name"] in FILLED.get(table, "").split()
            ]
            for table, _ in schema.get_sorted_table_and_fkc_names()
            if table is not None
        }


STANDING: dict[str, Sequence[Row]] = {
    table: [{name: _usual(name) for name in columns} | dict(own) for own in OWN.get(table, [{}])]
    for table, columns in _columns().items()
}
"""The rows of every table."""

ANOTHER: dict[str, Row] = {
    "deployment": {"value": "1991-06-01"},
    "node_output": {"content_hash": "b" * 64},
    "etl_checkpoint": {"node": "n2"},
    "etl_wal": {"content_hash": "b" * 64},
    "etl_steps": {"status": "FAILED"},
    "stage_audit": {"seq": 2, "previous_hash": HASH, "hash": "b" * 64},
    "stage_state": {"attempt": 2},
    "clock_readings": {"at": LATER},
    "alerts": {"subject": "other"},
    "outbox": {"subject": "2"},
    "run_state": {"run_id": "r2"},
    "replay_reasons": {"code": "drill"},
    "nodd_wal_records": {"wal_id": THREE, "object_uri": "s3://b/3"},
    "nodd_wal_transitions": {"wal_id": TWO, "version": 2},
    "nodd_wal_deliveries": {"message_id": "m2"},
    "nodd_wal_delivery_units": {"wal_id": TWO},
    "rejected_messages": {"record_index": 1},
    "ignored_records": {"record_index": 1},
    "catalog_collections": {"collection_id": "c2"},
    "catalog_kept_files": {"sha256": "b" * 64},
    "catalog_promotions": {"item_id": "i2"},
    "catalog_items": {"item_id": "i2"},
    "catalog_pages": {"page": 2},
    "catalog_summaries": {"value": "2"},
    "catalog_changes": {"item_id": "i2"},
    "announcements": {"item_id": "i2"},
    "lineage_batches": {"batch_id": "b2", "href": "2"},
    "governance_log": {"wal_id": TWO, "record_version": 1},
    "override_units": {"wal_id": TWO},
    "kill_switches": {"dataset": "b"},
    "nodd_wal_leases": {"ingest_run_id": "r2"},
    "size_peers": {"month": "2025-11"},
    "nodd_feeds": {"product": "q"},
    "nodd_listed_days": {"dataset": "e"},
    "nodd_gaps": {"product": "q"},
    "nodd_arrivals": {"product": "q"},
    "nodd_wal_supersessions": {"older_wal_id": TWO, "newer_wal_id": ONE},
    "metric_totals": {"subject": "e"},
    "nodd_wal_outcomes": {"attempt": 3},
    "lineage_emissions": {"revision": "e", "lineage_id": "l2"},
    "lineage_failures": {"wal_id": TWO},
    "replay_runs": {"replay_run_id": "p2"},
    "replay_units": {"position": 2, "wal_id": TWO},
    "quarantine_cases": {"wal_id": TWO},
    "backfill_days": {"dataset": "e"},
}
"""Changes that turn each table's first row into a valid second row."""

INVALIDATED = {"invalidated_by": "b3", "invalidation_reason": "x", "invalidated_at": T}
TERMINAL = {"integrity_status": "ok", "metadata_status": "ok", "stac_status": "created", "provenance_status": "ok"}
CLAIMED = {"status": "in_progress", "ingest_run_id": "r", "worker_id": "w", "last_attempt_at": T}
ACKNOWLEDGED = {"state": "acknowledged", "acknowledged_at": T, "acknowledged_by": "p", "acknowledged_why": "x"}

KNOWN = {
    "nodd_wal_records": "status integrity_status metadata_status stac_status provenance_status priority",
    "run_state": "outcome",
    "nodd_wal_deliveries": "state",
    "catalog_changes": "kind",
    "announcements": "kind state",
    "lineage_batches": "path state delivery",
    "nodd_gaps": "kind",
    "lineage_emissions": "path",
    "outbox": "topic",
    "replay_runs": "mode env state",
    "alerts": "state level",
}
"""Columns with a fixed set of values."""

CASES: dict[str, list[Row]] = {
    **{f"{table}_{name}_is_known": [{name: "odd"}] for table, names in KNOWN.items() for name in names.split()},
    "run_state_inputs_hash_is_sha256": [
        {"inputs_hash": text} for text in (HASH, f"sha256:{HASH[:-1]}", f"sha512:{HASH}")
    ],
    "run_state_validation_summary_is_object": [{"validation_summary": "[]"}],
    "run_state_success_has_artifact": [{"artifact_sha256": None}],
    "replay_reasons_code_is_short": [{"code": ""}, {"code": "x" * 61}],
    "nodd_wal_records_identity_is_unique": [{"object_uri": "s3://b/1"}],
    "nodd_wal_records_replay_reason_is_governed": [{"replay_reason": "whim"}],
    "nodd_wal_records_wal_id_is_uuid": [{"wal_id": "w-1"}, {"wal_id": THREE.replace("8", "A")}, {"wal_id": "8" * 36}],
    "nodd_wal_records_lane_is_known": [{"lane": "fast"}],
    "nodd_wal_records_batch_limit_is_positive": [{"batch_limit": 0}],
    "nodd_wal_records_attempts_are_counted": [{"attempts": -1}],
    "nodd_wal_records_version_is_positive": [{"version": 0}],
    "nodd_wal_records_success_is_complete": [
        {**TERMINAL, "status": "succeeded", column: "unknown"} for column in TERMINAL
    ],
    "nodd_wal_records_failed_item_is_no_success": [{**TERMINAL, "status": "succeeded", "stac_status": "failed"}],
    "nodd_wal_records_time_range_is_ordered": [{"time_range_end": "2025-12-03T11:00:00.000000Z"}],
    "nodd_wal_records_times_are_rfc3339": [
        *({name: "2025-12-03T12:00:00Z"} for name in ("event_time", "time_range_end", "created_at", "updated_at")),
        *({"created_at": text} for text in ("2025-12-03 12:00:00", "2025-12-03T12:00:00.000000+00:00")),
        {"time_range_start": "2025-12-03T11:00:00Z"}, {"last_attempt_at": "2025-12-03T12:00:00Z"},
        {"status": "failed", "last_error_code": "x", "next_attempt_at": "2025-12-03T12:00:00Z"},
    ],
    "nodd_wal_records_partition_is_day_of_start": [{"partition_key": "2025-12-04"}],
    "nodd_wal_records_trouble_has_code": [{"status": "failed"}, {"status": "quarantined"}],
    "nodd_wal_records_error_code_is_bounded": [{"last_error_code": ""}, {"last_error_code": "x" * 101}],
    "nodd_wal_records_error_message_is_bounded": [{"last_error_message": "x" * 501}],
    "nodd_wal_records_claim_is_attributed": [
        {**CLAIMED, column: None} for column in ("ingest_run_id", "worker_id", "last_attempt_at")
    ],
    "nodd_wal_records_due_time_is_of_failed": [{"next_attempt_at": T}],
    "nodd_wal_records_change_is_attributed": [{"changed_by": ""}, {"change_reason": ""}],
    "nodd_wal_records_extension_is_object": [{"extension": "[]"}],
    "nodd_wal_deliveries_receives_are_counted": [{"receive_count": 0}],
    "nodd_wal_deliveries_settled_has_time": [{"state": "deleted"}, {"settled_at": T}],
    "nodd_wal_deliveries_signature_is_known": [{"signature": "unknown"}],
    "nodd_wal_delivery_units_message_is_known": [{"message_id": "m9"}],
    "rejected_messages_message_is_known": [{"message_id": "m9"}],
    "rejected_messages_detail_is_bounded": [{"detail": "x" * 501}],
    "rejected_messages_reason_is_short": [{"reason_code": ""}, {"reason_code": "x" * 61}],
    "rejected_messages_records_are_counted": [{"records": 0}],
    "ignored_records_message_is_known": [{"message_id": "m9"}],
    "ignored_records_index_counts_from_zero": [{"record_index": -1}],
    "ignored_records_reason_is_short": [{"reason": ""}, {"reason": "x" * 61}],
    "ignored_records_names_are_bounded": [{"bucket": "x" * 256}, {"object_key": "x" * 1025}],
    "ignored_records_are_counted": [{"records": 0, "object_key": None}, {"records": 2}],
    "deployment_value_is_of_its_fact": [
        {"value": "yesterday"}, {"fact": "environment", "value": "production"}, {"fact": "id", "value": "a" * 31},
        {"fact": "mood"},
    ],
    "deployment_has_one_id": [{"fact": "id", "value": "a" * 32}],
    "deployment_is_attributed": [
        {"actor": ""}, {"actor": "x" * 201}, {"reason": ""}, {"reason": "x" * 1001},
    ],
    "catalog_kept_files_sha256_is_hex": [{"sha256": "x"}, {"sha256": "G" * 64}],
    "catalog_kept_files_length_is_counted": [{"content_bytes": -1}],
    "catalog_promotions_after_is_sha256": [{"after_sha256": "x"}, {"after_sha256": "G" * 64}],
    "catalog_promotions_before_is_kept": [{"before_sha256": "b" * 64}],
    "catalog_promotions_before_is_a_row": [
        {"before_revision": None},
        {"before_revision": None, "before_sha256": None, "before_promotion_id": 1},
    ],
    "catalog_items_promotion_is_logged": [{"promotion_id": 9}],
    "catalog_items_one_row_per_item": [{"item_id": "i1", "page": 2}],
    "catalog_items_collection_exists": [{"collection_id": "c9"}],
    "catalog_items_page_counts_from_one": [{"page": 0}],
    "catalog_items_revision_counts_from_one": [{"revision": 0}],
    "catalog_items_content_is_sha256": [{"content_sha256": "x"}, {"content_sha256": "G" * 64}],
    "catalog_items_bbox_is_whole": [{side: 1.0} for side in ("west", "south", "east", "north")],
    "catalog_items_time_range_is_ordered": [{"start_at": LATER}],
    "catalog_items_summaries_is_object": [{"summaries": "[]"}],
    "catalog_pages_are_not_empty": [{"items": 0}],
    "catalog_summaries_items_are_not_negative": [{"items": -1}],
    "catalog_changes_content_is_sha256": [{"content_sha256": "x"}, {"content_sha256": "G" * 64}],
    "catalog_changes_content_is_of_what_stands": [{"content_sha256": None}, {"kind": "withdrawn"}],
    "announcements_counts_are_not_negative": [
        {"change_id": 0},
        {"attempts": -1},
        {"taken": -1},
    ],
    "announcements_taken_have_a_time": [{"taken_at": None}, {"taken": 0}],
    "announcements_sent_were_taken": [{"state": "sent", "taken": 0, "taken_at": None}],
    "announcements_error_is_bounded": [{"last_error": "x" * 501}],
    "announcements_refused_are_kept": [
        {"body": "{}"},
        {"state": "refused", "last_error": "x"},
        {"state": "refused", "body": "{}"},
    ],
    "lineage_batches_one_file_each": [{"href": "1"}],
    "lineage_batches_published_has_time": [{"state": "published"}, {"published_at": T}],
    "lineage_batches_delivers_openlineage": [{"path": "prov", "delivery": "pending"}],
    "lineage_batches_delivers_published": [{"delivery": "delivered"}],
    "lineage_batches_sha256_is_hex": [{"sha256": "x"}, {"sha256": "G" * 64}],
    "lineage_batches_is_not_empty": [{"unit_count": 0}],
    "lineage_batches_invalidation_is_published": [{**INVALIDATED, "invalidated_by": "b9"}],
    "lineage_batches_invalidation_is_of_another_batch": [{**INVALIDATED, "invalidated_by": "b2"}],
    "lineage_batches_invalidation_is_whole": [{**INVALIDATED, column: None} for column in INVALIDATED],
    "lineage_batches_invalidation_reason_is_bounded": [
        {**INVALIDATED, "invalidation_reason": reason} for reason in ("", "x" * 201)
    ],
    "governance_log_by_decision": [{"wal_id": ONE, "record_version": 2}],
    "governance_log_decision_was_carried_out": [{"record_version": 9}, {"wal_id": THREE}],
    "governance_log_entry_is_attributed": [
        {"actor": ""}, {"actor": "x" * 201}, {"reason": ""}, {"reason": "x" * 1001},
    ],
    "governance_log_action_is_a_word": [
        {"action": action} for action in ("", "x" * 41, "Let it in", "_release", "release1")
    ],
    "governance_log_change_ref_is_bounded": [{"change_ref": ""}, {"change_ref": "x" * 201}],
    "governance_log_change_is_whole": [
        {"record_version": None}, {"from_status": None}, {"to_status": None}, {"wal_id": None},
    ],
    "governance_log_override_has_change_ref": [
        {"change_ref": None}, {"change_ref": None, "from_status": "succeeded"},
    ],
    "governance_log_details_are_object": [{"details": "[]"}],
    "governance_log_approval_is_whole": [{"approved_by": "b"}, {**NO_CHANGE, "approved_by": "b", "proposal_id": 2}],
    "governance_log_proposal_is_known": [{"proposal_id": 99}],
    "governance_log_by_proposal": [{**NO_CHANGE, "proposal_id": 1}],
    "override_units_version_is_known": [{"version": 9}],
    "kill_switches_one_open_per_dataset": [{"dataset": "a"}],
    "kill_switches_is_attributed": [
        {"engaged_by": ""}, {"engaged_by": "x" * 201}, {"reason": ""}, {"reason": "x" * 1001},
    ],
    "kill_switches_expires_later": [{"expires_at": T}],
    "kill_switches_release_is_attributed": [
        {"released_at": LATER}, {"released_at": LATER, "released_by": "p"}, {"released_by": "p"},
        {"release_reason": "x"},
    ],
    "nodd_wal_leases_lasts": [{"expires_at": T}],
    "nodd_listed_days_day_is_a_day": [{"day": "yesterday"}],
    "nodd_gaps_are_counted": [{"expected": 0, "closed_at": LATER}, {"seen": -1}],
    "nodd_gaps_open_lacks_something": [{"seen": 2}],
    "nodd_gaps_close_after_they_open": [{"first_seen": LATER, "closed_at": T}],
    "nodd_gaps_repaired_are_closed": [{"repaired_by": "r"}],
    "nodd_gaps_one_at_a_time": [{"product": "p", "kind": "silence", "hour": LATER}],
    "nodd_arrivals_day_is_a_day": [{"day": "yesterday"}],
    "nodd_arrivals_are_counted": [{"objects": 0}],
    "nodd_arrivals_classes_is_object": [{"classes": "[]"}],
    "nodd_arrivals_leads_is_object": [{"leads": "[]"}],
    "size_peers_are_recent": [{"sizes": "{}"}, {"sizes": "[]"}, {"sizes": str([1] * 25)}],
    "nodd_wal_supersessions_one_successor": [{"older_wal_id": ONE, "newer_wal_id": TWO}],
    "nodd_wal_supersessions_older_is_known": [{"older_wal_id": THREE}],
    "nodd_wal_supersessions_newer_is_known": [{"newer_wal_id": THREE}],
    "nodd_wal_supersessions_of_another_unit": [{"newer_wal_id": TWO}],
    "metric_totals_something_happened": [{"amount": 0.0}, {"amount": -1.0}],
    "metric_totals_names_are_bounded": [
        {"metric": ""}, {"metric": "x" * 61}, {"subject": "x" * 321}, {"label": "x" * 101},
    ],
    "metric_totals_one_row": [{"subject": "d"}],
    "nodd_wal_outcomes_record_is_known": [{"wal_id": THREE}],
    "nodd_wal_outcomes_earlier_outcome_is_known": [{"differs_from": 9, "permitted": True}],
    "nodd_wal_outcomes_difference_is_judged": [{"differs_from": 1}, {"permitted": False}],
    "lineage_emissions_id_names_one_unit": [{"lineage_id": "l1"}],
    "lineage_emissions_revision_is_bounded": [{"revision": "x" * 201}],
    "lineage_emissions_content_is_sha256": [{"content_sha256": "x"}, {"content_sha256": "G" * 64}],
    "lineage_emissions_have_a_batch": [{"batch_id": "b9"}],
    "lineage_failures_record_is_known": [{"wal_id": THREE}],
    "lineage_failures_are_published_in_a_batch": [{"batch_id": "b9"}],
    "replay_runs_id_is_short": [{"replay_run_id": ""}, {"replay_run_id": "x" * 61}],
    "replay_runs_name_is_short": [{"name": ""}, {"name": "x" * 101}],
    "replay_runs_halt_has_reason": [
        {"state": "paused"}, {"state": "stopped"}, {"state_reason": "x"}, {"state": "paused", "state_reason": ""},
        {"state": "paused", "state_reason": "x" * 1001},
    ],
    "replay_runs_finish_is_stamped": [{"state": "finished"}, {"finished_at": T}],
    "replay_runs_spec_hash_is_sha256": [{"spec_sha256": "x"}, {"spec_sha256": "G" * 64}],
    "replay_runs_spec_is_object": [{"spec": "[]"}],
    "replay_runs_counts_are_counted": [{"batches": -1}, {"mismatches_seen": -1}],
    "replay_runs_is_attributed": [{"actor": ""}, {"actor": "x" * 201}, {"reason": ""}, {"reason": "x" * 1001}],
    "replay_runs_change_ref_is_bounded": [{"change_ref": ""}, {"change_ref": "x" * 201}],
    "replay_runs_replacing_has_change_ref": [{"mode": "repair-and-replace"}],
    "replay_runs_times_are_rfc3339": [
        {"created_at": "2025-12-03 12:00:00"}, {"updated_at": "2025-12-03 12:00:00"},
        {"state": "finished", "finished_at": "2025-12-03 12:00:00"},
    ],
    "replay_units_one_row_per_unit": [{"wal_id": ONE}],
    "replay_units_replay_is_known": [{"replay_run_id": "p9"}],
    "replay_units_record_is_known": [{"wal_id": THREE}],
    "replay_units_admission_is_in_history": [{"state": "admitted", "admitted_version": 9, "decided_at": T}],
    "replay_units_are_counted_from_one": [{"position": 0}, {"batch": 0}],
    "replay_units_state_is_known": [{"state": "odd", "decided_at": T}],
    "replay_units_skip_has_reason": [
        {"state": "skipped", "decided_at": T}, {"skip_reason": "x"},
        {"state": "skipped", "decided_at": T, "skip_reason": ""},
        {"state": "skipped", "decided_at": T, "skip_reason": "x" * 61},
    ],
    "replay_units_admission_has_version": [{"state": "admitted", "decided_at": T}, {"admitted_version": 1}],
    "replay_units_decision_is_stamped": [{"decided_at": T}, {"state": "skipped", "skip_reason": "x"}],
    "quarantine_cases_quarantine_happened": [{"quarantined_version": 9}],
    "quarantine_cases_closing_entry_is_known": [{"state": "discarded", "closed_at": T, "closing_entry": 999}],
    "quarantine_cases_state_is_known": [{"state": "odd", "closed_at": T, "closing_entry": 1}],
    "quarantine_cases_evidence_is_content_addressed": [
        *({**EVIDENCE, column: None} for column in EVIDENCE), {**EVIDENCE, "evidence_sha256": "b" * 64},
        {**EVIDENCE, "evidence_uri": "elsewhere.json"},
    ],
    "quarantine_cases_closing_is_whole": [{"state": "discarded"}, {"closed_at": T}, {"closing_entry": 1}],
    "backfill_days_backfill_is_known": [{"backfill_id": "f9"}],
    "backfill_days_day_is_a_day": [{"day": "tomorrow"}],
    "backfill_days_left_out_is_object": [{"left_out": "[]"}],
    "backfill_days_state_is_known": [{"state": "odd", "requested_at": T, "requests": 1}],
    "backfill_days_states_have_their_times": [
        {"state": "requested"}, {"state": "requested", "requests": 1}, {"requests": 1},
        {"state": "listed", "requests": 1, "requested_at": T}, {"listed_at": T},
    ],
    "backfill_days_counts_are_counts": [
        {"state": "requested", "requested_at": T, "requests": -1}, {"listed": -1}, {"created": -1}, {"requeued": -1},
    ],
    "etl_wal_status_is_known": [{"status": "DONE", "applied_at": None}],
    "etl_wal_run_id_is_uuid": [{"run_id": "run-1"}, {"run_id": ONE.replace("8", "G")}, {"run_id": "8" * 36}],
    "etl_wal_content_hash_is_sha256": [{"content_hash": "B" * 64}, {"content_hash": "b" * 63}],
    "etl_wal_payload_is_object": [{"payload": "[]"}],
    "etl_wal_applied_has_a_time": [{"applied_at": None}, {"status": "PENDING"}],
    "etl_wal_claimed_is_applied": [{"claimed": "[]"}, {"claimed": "{}", "status": "PENDING", "applied_at": None}],
    "etl_wal_content_is_applied_once": [{"content_hash": HASH}],
    "node_output_content_hash_is_sha256": [{"content_hash": "B" * 64}, {"content_hash": "b" * 63}],
    "node_output_record_is_json": [{"record": "no"}],
    "node_output_lineage_is_json": [{"lineage": "no"}],
    "node_output_window_is_one": [{"valid_from": LATER, "valid_to": T}],
    "etl_steps_have_an_intent": [{"wal_id": 9}],
    "etl_steps_have_ended": [{"status": "PENDING"}],
    "etl_steps_measures_are_not_negative": [{name: -1} for name in MEASURES if name != "measured_by"],
    "etl_steps_energy_has_a_method": [{"measured_by": None}, {"energy_kwh": None}, {"carbon_gco2e": None}],
    "etl_steps_error_is_of_a_failure": [{"status": "SKIPPED", "error": "x"}],
    "etl_steps_error_is_bounded": [{"error": "x" * 201}],
    "etl_steps_are_published_in_a_batch": [{"batch_id": "b9"}],
    "stage_audit_kind_is_known": [{"kind": "rumour"}],
    "stage_audit_event_is_named": [{"event": ""}, {"event": "x" * 101}],
    "stage_audit_details_are_object": [{"details": "[]"}],
    "stage_audit_earlier_is_array": [{"earlier": "{}"}],
    "stage_audit_hash_is_sha256": [{"hash": "a" * 63}, {"hash": "A" * 64}],
    "stage_audit_does_not_fork": [{"previous_hash": "0" * 64}],
    "stage_state_is_known": [{"state": "paused", "error_class": None}],
    "stage_state_key_is_sha256": [{"idempotency_key": "a" * 63}, {"idempotency_key": "A" * 64}],
    "stage_state_inputs_are_array": [{"input_hashes": "{}"}],
    "stage_state_restricted_is_array": [{"restricted": "{}"}],
    "stage_state_error_is_of_a_failure": [
        {"error_class": None}, {"state": "succeeded"}, {"error_class": "E_LUCK"},
        {"state": "running", "ended_at": None},
    ],
    "stage_state_times_fit": [
        {"started_at": None}, {"ended_at": None}, {"state": "pending", "error_class": None, "started_at": None},
        {"state": "pending", "error_class": None, "ended_at": None},
    ],
    "stage_state_checkpoint_has_a_digest": [{"checkpoint_uri": "a"}],
    "stage_state_compensation_is_object": [{"compensation": "[]"}],
    "stage_state_rollback_rests_on_something": [{"state": "rolled_back"}],
    "clock_readings_clock_is_named": [{"clock_id": ""}, {"clock_id": "x" * 101}],
    "clock_readings_source_is_named": [{"source": ""}, {"source": "x" * 301}],
    "clock_readings_state_is_known": [{"state": "right"}],
    "clock_readings_offset_has_bounds": [
        {"state": "unknown", "offset_seconds": None}, {"state": "unknown", "uncertainty_seconds": None}
    ],
    "clock_readings_offset_is_finite": [
        {"offset_seconds": float("inf")}, {"offset_seconds": float("-inf")},
        {"uncertainty_seconds": float("inf")}, {"uncertainty_seconds": -0.1},
    ],
    "clock_readings_locked_has_offset": [{"offset_seconds": None, "uncertainty_seconds": None}],
    "alerts_rule_is_a_word": [{"rule": "Mood"}, {"rule": "m" * 61}, {"rule": ""}],
    "alerts_subject_is_named": [{"subject": ""}, {"subject": "x" * 301}],
    "alerts_place_is_named": [{"place": ""}, {"place": "x" * 301}],
    "alerts_events_are_counted": [{"observed": 0}],
    "alerts_notifications_are_counted": [{"notifications": -1}, {"notifications": 0}, {"last_notified_at": None}],
    "alerts_acknowledgement_is_whole": [
        {"state": "acknowledged"}, *({**ACKNOWLEDGED, column: None} for column in ACKNOWLEDGED if column != "state"),
    ],
    "alerts_resolution_has_a_time": [{"state": "resolved"}, {"resolved_at": T}],
    "alerts_one_open_per_key": [{"subject": "clock"}, {"subject": "clock", **ACKNOWLEDGED}],
    "outbox_counts_are_not_negative": [{"position": -1}, {"turn": -1}, {"failures": -1, "last_error": "x"}],
    "outbox_error_is_bounded": [{"failures": 1, "last_error": "x" * 501}],
    "outbox_error_is_of_a_failure": [{"failures": 1}, {"last_error": "x"}],
    "etl_checkpoint_names_an_output": [{"last_applied_hash": "c" * 64}],
}  # fmt: skip
"""Changes that violate each constraint, one for each way to violate it."""

TROUBLE, DECIDED, CLOSED = {"last_error_code": "x"}, {"decided_at": T}, {"closed_at": T, "closing_entry": 1}
NO_ERROR = {"error_class": None}
ACCEPTED: dict[str, list[Row]] = {
    "deployment": [{"fact": "environment", "value": value} for value in ("dev", "stage", "prod")],
    "run_state": [{"outcome": outcome} for outcome in ("failed", "partial", "skipped")],
    "nodd_wal_records": [
        CLAIMED, {"status": "failed", **TROUBLE}, {"status": "quarantined", **TROUBLE},
        *(
            {"status": "succeeded", **dict(zip(TERMINAL, columns.split(), strict=True))}
            for columns in ("ok ok created ok", "suspect suspect updated partial", "ok ok no-op ok")
        ),
        dict.fromkeys(TERMINAL, "failed"), {"priority": "high"}, {"priority": "low"}, {"lane": "bulk"},
        {"batch_limit": 1}, {"last_error_message": "x" * 500},
    ],
    "metric_totals": [{"subject": "x" * 320}, {"label": "x" * 100}],
    "nodd_wal_deliveries": [
        {"state": "rejected"}, {"state": "ignored"}, {"state": "deleted", "settled_at": T},
        {"state": "dead_lettered", "settled_at": T}, {"signature": "invalid"},
    ],
    "rejected_messages": [{"detail": "x" * 500}],
    "ignored_records": [{"bucket": "x" * 255}, {"object_key": "x" * 1024}],
    "catalog_kept_files": [{"content_bytes": 0}],
    "catalog_summaries": [{"items": 0}],
    "catalog_changes": [{"kind": "updated"}, {"kind": "withdrawn", "content_sha256": None}],
    "announcements": [
        {"kind": "updated"}, {"kind": "withdrawn"}, {"state": "sent"}, {"state": "silent"}, {"change_id": 1},
        {"state": "refused", "body": "{}", "last_error": "x" * 500}, {"taken": 0, "taken_at": None},
    ],
    "lineage_batches": [
        {"path": "prov"}, {"state": "published", "published_at": T}, {"delivery": "pending"},
        {"state": "published", "published_at": T, "delivery": "delivered"},
    ],
    "lineage_emissions": [{"path": "prov"}, {"revision": "x" * 200}],
    "governance_log": [{"approved_by": "b", "proposal_id": 1}],
    "nodd_gaps": [{"kind": "drop"}, {"expected": 1, "seen": 0}, {"closed_at": T}],
    "replay_runs": [
        {"mode": "repair-and-replace", "change_ref": "C-1"}, {"mode": "backfill"}, {"env": "stage"}, {"env": "prod"},
        {"state": "planned"}, {"state": "paused", "state_reason": "x"}, {"state": "stopped", "state_reason": "x"},
        {"state": "finished", "finished_at": T}, {"batches": 0},
    ],
    "replay_units": [
        {"state": "admitted", "admitted_version": 1, **DECIDED}, {"state": "skipped", "skip_reason": "x", **DECIDED},
    ],
    "quarantine_cases": [{"state": "released", **CLOSED}, {"state": "discarded", **CLOSED}],
    "backfill_days": [
        {"state": "requested", "requests": 1, "requested_at": T},
        {"state": "listed", "requests": 1, "requested_at": T, "listed_at": T},
    ],
    "etl_wal": [{"status": status, "applied_at": None} for status in ("PENDING", "SKIPPED", "FAILED")],
    "node_output": [{"valid_to": T}],
    "etl_steps": [
        {"status": "SKIPPED"}, {"error": "x" * 200},
        {**dict.fromkeys(MEASURES, 0), "measured_by": "x"},
    ],
    "stage_audit": [
        {"kind": kind}
        for kind in ("transition", "stop", "retry", "checkpoint", "compensation", "override", "replay")
    ],
    "stage_state": [
        {"state": "pending", **NO_ERROR, "started_at": None, "ended_at": None}, {"state": "succeeded", **NO_ERROR},
        {"state": "running", **NO_ERROR, "ended_at": None}, {"state": "rolled_back", "compensation": "{}"},
        *({"error_class": code} for code in ("E_INPUT", "E_DIM", "E_SYNC", "E_UQ", "E_INTERNAL")),
    ],
    "clock_readings": [
        {"state": "unlocked"}, {"state": "unknown", "offset_seconds": None, "uncertainty_seconds": None},
    ],
    "alerts": [
        ACKNOWLEDGED, {"state": "resolved", "resolved_at": T}, {"level": "info"}, {"level": "critical"},
        {"notifications": 0, "last_notified_at": None},
    ],
    "outbox": [{"topic": "catalog"}, {"topic": "lineage"}, {"failures": 1, "last_error": "x" * 500}],
}  # fmt: skip
"""Valid changes of the second row: each value of a column with fixed values, and the last value within a limit."""

SQLITE_ONLY = {
    "nodd_wal_records_times_are_rfc3339",
    "replay_runs_times_are_rfc3339",
    "etl_wal_run_id_is_uuid",
    "node_output_record_is_json",
    "node_output_lineage_is_json",
    "metric_totals_one_row",
}
"""Constraints only of SQLite. PostgreSQL has types for the texts, and several rows of `metric_totals` for one count."""
NEVER_NAMED = {
    # PostgreSQL accepts no value for a generated key; in SQLite such a key has no named constraint.
    "governance_log_one_row_per_entry",
    "kill_switches_one_row_per_switch",
    "etl_wal_one_row_per_intent",
    "clock_readings_one_row_per_reading",
    "alerts_one_row_per_alert",
    "catalog_promotions_one_row_per_promotion",
    "catalog_changes_one_row_per_change",
    # A row that violates this key also violates the constraint on unique Items, which has fewer columns.
    "catalog_items_in_order_of_pages",
}
REFUSED_BY_ANOTHER = {"sqlite": {"nodd_wal_records_failed_item_is_no_success": "nodd_wal_records_success_is_complete"}}
"""Of two violated constraints, PostgreSQL names the first in the alphabet, SQLite the first in the table."""


def test_every_constraint_refuses_its_violation(database: Database) -> None:
    faults, cases = [], {**CASES, **_primary_keys(database)}
    with database.engine.connect() as connection, connection.begin() as filled:
        _switch_triggers_off(connection)
        for table, rows in STANDING.items():
            for row in rows:
                insert(connection, table, row)
        for table in STANDING:
            for change in ({}, *ACCEPTED.get(table, [])):
                refusal = _refusal(connection, table, change)
                faults += [] if refusal is None else [f"{table}: {change}: {refusal}"]
        for name, changes in cases.items():
            if name in SQLITE_ONLY and database.dialect != "sqlite":
                continue
            table = next(table for table in sorted(STANDING, key=len, reverse=True) if name.startswith(table))
            expected = REFUSED_BY_ANOTHER.get(database.dialect, {}).get(name, name)
            for change in changes:
                refusal = _refusal(connection, table, change)
                if refusal is None or not _is_named(refusal, expected, table):
                    faults.append(f"{name}: {change}: {refusal or 'accepted'}")
        filled.rollback()
    assert not faults, "\n".join(faults)


def test_every_constraint_has_a_case(database: Database) -> None:
    names = _constraints(database)
    assert names - NEVER_NAMED - set(CASES) - set(_primary_keys(database)) == set()
    assert set(CASES) - names == (set() if database.dialect == "sqlite" else SQLITE_ONLY)


def _primary_keys(database: Database) -> dict[str, list[Row]]:
    """Return a row of each table with its first row's primary key, except for generated keys."""
    inspector = sa.inspect(database.engine)
    keys = {table: inspector.get_pk_constraint(table) for table in STANDING}
    return {
        str(key["name"]): [{column: STANDING[table][0][column] for column in key["constrained_columns"]}]
        for table, key in keys.items()
        if key["name"] not in {None, *CASES, *NEVER_NAMED}
        and STANDING[table][0].keys() >= set(key["constrained_columns"])
    }


def _refusal(connection: Connection, table: str, change: Row) -> str | None:
    """Return the refusal of the table's second row with a change, or None if the database accepts the row."""
    with connection.begin_nested() as savepoint:
        try:
            insert(connection, table, {**STANDING[table][0], **ANOTHER[table], **change})
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
            elif connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
                return "FOREIGN KEY constraint failed, when it is committed"
        except IntegrityError as error:
            return getattr(getattr(error.orig, "diag", None), "constraint_name", None) or str(error.orig)
        finally:
            savepoint.rollback()
    return None


def _switch_triggers_off(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        for table in STANDING:
            connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        return
    for (trigger,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").all():
        connection.exec_driver_sql(f"DROP TRIGGER {trigger}")


def insert(connection: Connection, table: str, row: Row, *, verb: str = "") -> None:
    """Insert a row into a table, or insert it `OR REPLACE`."""
    connection.execute(sa.insert(sa.table(table, *map(sa.column, row))).prefix_with(verb).values(dict(row)))


def _is_named(refusal: str, name: str, table: str) -> bool:
    # SQLite's errors have the name of a CHECK or an expression index, the columns of a key, and nothing of a reference.
    keys = (f"UNIQUE constraint failed: {table}.", "FOREIGN KEY constraint failed")
    return (
        refusal in {name, f"CHECK constraint failed: {name}"} or name in refusal.split("'") or refusal.startswith(keys)
    )


def _constraints(database: Database) -> set[str]:
    """Return the names of the live schema's CHECKs, keys, references and unique indexes."""
    queries = {
        "postgresql": """
            SELECT conname FROM pg_constraint AS c INNER JOIN pg_class AS t ON c.conrelid = t.oid
            WHERE c.contype IN ('c', 'f', 'u', 'p') AND c.connamespace = 'public'::regnamespace
            AND t.relname <> 'schema_version'
            UNION SELECT indexrelid::regclass::text FROM pg_index AS i INNER JOIN pg_class AS t ON i.indrelid = t.oid
            WHERE i.indisunique AND t.relnamespace = 'public'::regnamespace AND t.relname <> 'schema_version'
        """,
        "sqlite": "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL",
    }
    with database.engine.begin() as connection:
        names = connection.exec_driver_sql(queries[database.dialect]).scalars().all()
    if database.dialect == "postgresql":
        return set(names)
    return set(re.findall(r"(?:CONSTRAINT|CREATE UNIQUE INDEX) (\w+)", "\n".join(names)))
