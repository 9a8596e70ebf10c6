-- What is on record stays, whoever types: guards of the tables that had none. SQLite has no grants, these are all it has.

-- A success is not overwritten by other work on the same inputs, and a run that was taken back is over: what may follow
-- is only a rollback's record, or other inputs (RSP-05, PCS-03).
DROP TRIGGER run_state_success_is_kept
-- ;
CREATE TRIGGER run_state_success_is_kept BEFORE UPDATE ON run_state
WHEN
    (NEW.dataset_id, NEW.run_id) IS NOT (OLD.dataset_id, OLD.run_id)
    OR (OLD.outcome = 'success' AND NEW.outcome = 'skipped')
    OR (
        (
            (OLD.outcome = 'success' AND NEW.inputs_hash = OLD.inputs_hash)
            OR OLD.validation_summary ->> 'rolled_back_by' IS NOT NULL
        )
        AND NOT (
            NEW.outcome = 'failed' AND NEW.artifact_uri IS NULL
            AND NEW.validation_summary ->> 'rolled_back_by' IS NOT NULL
        )
    )
BEGIN
    SELECT RAISE(ABORT, 'run_state_success_is_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER run_state_success_is_not_replaced BEFORE INSERT ON run_state
WHEN EXISTS (
    SELECT 1 FROM run_state AS r
    WHERE
        r.dataset_id = NEW.dataset_id AND r.run_id = NEW.run_id
        AND (
            (r.outcome = 'success' AND NEW.outcome = 'skipped')
            OR (
                (
                    (r.outcome = 'success' AND NEW.inputs_hash = r.inputs_hash)
                    OR r.validation_summary ->> 'rolled_back_by' IS NOT NULL
                )
                AND NOT (
                    NEW.outcome = 'failed' AND NEW.artifact_uri IS NULL
                    AND NEW.validation_summary ->> 'rolled_back_by' IS NOT NULL
                )
            )
        )
)
BEGIN
    SELECT RAISE(ABORT, 'run_state_success_is_kept');
END
-- ;
CREATE TRIGGER run_state_is_kept BEFORE DELETE ON run_state
BEGIN
    SELECT RAISE(ABORT, 'run_state_is_kept');
END
-- ;
-- A message that is forgotten is missing in every balance (BEY-03).
CREATE TRIGGER nodd_wal_deliveries_are_kept BEFORE DELETE ON nodd_wal_deliveries
BEGIN
    SELECT RAISE(ABORT, 'deliveries_are_kept');
END
-- ;
-- When a message came first, from where, and how often at least, never changes.
CREATE TRIGGER nodd_wal_deliveries_identity_is_immutable BEFORE UPDATE ON nodd_wal_deliveries
WHEN
    NEW.receive_count < OLD.receive_count
    OR (NEW.message_id, NEW.first_received_at, NEW.sns_message_id, NEW.topic_arn)
    IS NOT (OLD.message_id, OLD.first_received_at, OLD.sns_message_id, OLD.topic_arn)
BEGIN
    SELECT RAISE(ABORT, 'deliveries_identity_is_immutable');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger: a row that is made where units wait for it was made so. After,
-- because a message that comes again is inserted, too, and then updated.
CREATE TRIGGER nodd_wal_deliveries_are_not_replaced AFTER INSERT ON nodd_wal_deliveries
WHEN
    EXISTS (SELECT 1 FROM nodd_wal_delivery_units AS u WHERE u.message_id = NEW.message_id)
    OR EXISTS (SELECT 1 FROM rejected_messages AS r WHERE r.message_id = NEW.message_id)
BEGIN
    SELECT RAISE(ABORT, 'deliveries_are_kept');
END
-- ;
-- A message whose unit were taken from it would be deleted from the queue before that unit has ended.
CREATE TRIGGER nodd_wal_delivery_units_are_not_changed BEFORE UPDATE ON nodd_wal_delivery_units
BEGIN
    SELECT RAISE(ABORT, 'delivery_units_are_append_only');
END
-- ;
CREATE TRIGGER nodd_wal_delivery_units_are_not_deleted BEFORE DELETE ON nodd_wal_delivery_units
BEGIN
    SELECT RAISE(ABORT, 'delivery_units_are_append_only');
END
-- ;
-- What a sender may dispute is kept as it came.
CREATE TRIGGER rejected_messages_are_not_changed BEFORE UPDATE ON rejected_messages
BEGIN
    SELECT RAISE(ABORT, 'rejections_are_append_only');
END
-- ;
CREATE TRIGGER rejected_messages_are_not_deleted BEFORE DELETE ON rejected_messages
BEGIN
    SELECT RAISE(ABORT, 'rejections_are_append_only');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER rejected_messages_are_not_replaced BEFORE INSERT ON rejected_messages
WHEN EXISTS (
    SELECT 1 FROM rejected_messages AS r
    WHERE r.message_id = NEW.message_id AND r.record_index = NEW.record_index
)
BEGIN
    SELECT RAISE(ABORT, 'rejections_are_append_only');
END
-- ;
CREATE TRIGGER etl_checkpoint_is_kept BEFORE DELETE ON etl_checkpoint
BEGIN
    SELECT RAISE(ABORT, 'checkpoints_are_kept');
END
-- ;
-- A checkpoint on what was never applied would skip work that was never done.
CREATE TRIGGER etl_checkpoint_begins_with_what_was_applied BEFORE INSERT ON etl_checkpoint
WHEN NOT EXISTS (SELECT 1 FROM etl_wal AS w WHERE w.content_hash = NEW.last_applied_hash AND w.status = 'APPLIED')
BEGIN
    SELECT RAISE(ABORT, 'checkpoints_name_what_was_applied');
END
-- ;
CREATE TRIGGER etl_checkpoint_names_what_was_applied BEFORE UPDATE ON etl_checkpoint
WHEN
    NEW.node IS NOT OLD.node
    OR NOT EXISTS (SELECT 1 FROM etl_wal AS w WHERE w.content_hash = NEW.last_applied_hash AND w.status = 'APPLIED')
BEGIN
    SELECT RAISE(ABORT, 'checkpoints_name_what_was_applied');
END
-- ;
-- An Item leaves the index when the run that wrote it is undone, which the log says first (ADR 012).
CREATE TRIGGER catalog_items_leave_by_an_undo BEFORE DELETE ON catalog_items
WHEN NOT EXISTS (
    SELECT 1 FROM catalog_promotions AS promotion
    INNER JOIN catalog_withdrawals AS withdrawal
        ON
            promotion.collection_id = withdrawal.collection_id AND promotion.dataset = withdrawal.dataset
            AND promotion.run_id = withdrawal.run_id AND promotion.promotion_id <= withdrawal.up_to_promotion_id
    WHERE promotion.promotion_id = OLD.promotion_id
)
BEGIN
    SELECT RAISE(ABORT, 'items_leave_by_an_undo');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger; so replaced, an Item keeps what an update would leave it.
CREATE TRIGGER catalog_items_are_not_replaced BEFORE INSERT ON catalog_items
WHEN EXISTS (
    SELECT 1 FROM catalog_items AS r
    WHERE
        r.collection_id = NEW.collection_id AND r.item_id = NEW.item_id
        AND (NEW.revision <> r.revision + 1 OR NEW.partition_key <> r.partition_key OR NEW.page <> r.page)
)
BEGIN
    SELECT RAISE(ABORT, 'catalog_items_revision_grows_by_one');
END
-- ;
-- A lease is of claims: it begins and goes on while its worker holds one of them, and goes when nobody does.
CREATE TRIGGER nodd_wal_leases_begin_with_a_claim BEFORE INSERT ON nodd_wal_leases
WHEN NOT EXISTS (
    SELECT 1 FROM nodd_wal_records AS r
    WHERE
        r.status = 'in_progress' AND r.ingest_run_id = NEW.ingest_run_id AND r.dataset = NEW.dataset
        AND r.worker_id = NEW.worker_id
)
BEGIN
    SELECT RAISE(ABORT, 'leases_are_of_claims');
END
-- ;
CREATE TRIGGER nodd_wal_leases_go_on_with_a_claim BEFORE UPDATE ON nodd_wal_leases
WHEN
    (NEW.ingest_run_id, NEW.dataset, NEW.acquired_at) IS NOT (OLD.ingest_run_id, OLD.dataset, OLD.acquired_at)
    OR NOT EXISTS (
        SELECT 1 FROM nodd_wal_records AS r
        WHERE
            r.status = 'in_progress' AND r.ingest_run_id = NEW.ingest_run_id AND r.dataset = NEW.dataset
            AND r.worker_id = NEW.worker_id
    )
BEGIN
    SELECT RAISE(ABORT, 'leases_are_of_claims');
END
-- ;
CREATE TRIGGER nodd_wal_leases_end_without_claims BEFORE DELETE ON nodd_wal_leases
WHEN EXISTS (
    SELECT 1 FROM nodd_wal_records AS r
    WHERE r.status = 'in_progress' AND r.ingest_run_id = OLD.ingest_run_id AND r.dataset = OLD.dataset
)
BEGIN
    SELECT RAISE(ABORT, 'leases_are_of_claims');
END
