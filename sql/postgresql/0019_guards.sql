-- What is on record stays, whoever types: guards of the tables that had none. Grants keep a deployment's role from most of
-- this (sql/queries/postgresql/roles.sql); these keep the owner's hand from it, too.

-- A success is not overwritten by other work on the same inputs, and a run that was taken back is over: what may follow
-- is only a rollback's record, or other inputs (RSP-05, PCS-03).
DROP TRIGGER run_state_success_is_kept ON run_state
-- ;
CREATE TRIGGER run_state_success_is_kept BEFORE UPDATE ON run_state
FOR EACH ROW WHEN (
    (NEW.dataset_id, NEW.run_id) IS DISTINCT FROM (OLD.dataset_id, OLD.run_id)
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
)
EXECUTE FUNCTION run_state_keep_success()
-- ;
CREATE TRIGGER run_state_is_kept BEFORE DELETE OR TRUNCATE ON run_state
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('run_state_is_kept')
-- ;
-- A message that is forgotten is missing in every balance (BEY-03).
CREATE TRIGGER nodd_wal_deliveries_are_kept BEFORE DELETE OR TRUNCATE ON nodd_wal_deliveries
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('deliveries_are_kept')
-- ;
-- When a message came first, from where, and how often at least, never changes.
CREATE TRIGGER nodd_wal_deliveries_identity_is_immutable BEFORE UPDATE ON nodd_wal_deliveries
FOR EACH ROW WHEN (
    NEW.receive_count < OLD.receive_count
    OR (NEW.message_id, NEW.first_received_at, NEW.sns_message_id, NEW.topic_arn)
    IS DISTINCT FROM (OLD.message_id, OLD.first_received_at, OLD.sns_message_id, OLD.topic_arn)
)
EXECUTE FUNCTION nodd_wal_refuse_statement('deliveries_identity_is_immutable')
-- ;
-- A message whose unit were taken from it would be deleted from the queue before that unit has ended.
CREATE TRIGGER nodd_wal_delivery_units_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON nodd_wal_delivery_units
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('delivery_units_are_append_only')
-- ;
-- What a sender may dispute is kept as it came.
CREATE TRIGGER rejected_messages_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON rejected_messages
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('rejections_are_append_only')
-- ;
CREATE TRIGGER etl_checkpoint_is_kept BEFORE DELETE OR TRUNCATE ON etl_checkpoint
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('checkpoints_are_kept')
-- ;
-- A checkpoint on what was never applied would skip work that was never done.
CREATE FUNCTION etl_checkpoint_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF
        (TG_OP = 'UPDATE' AND NEW.node IS DISTINCT FROM OLD.node)
        OR NOT EXISTS (
            SELECT 1 FROM etl_wal AS w WHERE w.content_hash = NEW.last_applied_hash AND w.status = 'APPLIED'
        )
    THEN
        RAISE EXCEPTION 'checkpoints_name_what_was_applied'
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER etl_checkpoint_names_what_was_applied BEFORE INSERT OR UPDATE ON etl_checkpoint
FOR EACH ROW EXECUTE FUNCTION etl_checkpoint_guard()
-- ;
-- An Item leaves the index when the run that wrote it is undone, which the log says first (ADR 012).
CREATE FUNCTION catalog_items_leave() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM catalog_promotions AS promotion
        INNER JOIN catalog_withdrawals AS withdrawal
            ON
                promotion.collection_id = withdrawal.collection_id AND promotion.dataset = withdrawal.dataset
                AND promotion.run_id = withdrawal.run_id AND promotion.promotion_id <= withdrawal.up_to_promotion_id
        WHERE promotion.promotion_id = OLD.promotion_id
    ) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'items_leave_by_an_undo'
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END
$$
-- ;
CREATE TRIGGER catalog_items_leave_by_an_undo BEFORE DELETE ON catalog_items
FOR EACH ROW EXECUTE FUNCTION catalog_items_leave()
-- ;
CREATE TRIGGER catalog_items_are_not_truncated BEFORE TRUNCATE ON catalog_items
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('items_leave_by_an_undo')
-- ;
-- A lease is of claims: it begins and goes on while its worker holds one of them, and goes when nobody does.
CREATE FUNCTION nodd_wal_leases_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (
            SELECT 1 FROM nodd_wal_records AS r
            WHERE r.status = 'in_progress' AND r.ingest_run_id = OLD.ingest_run_id AND r.dataset = OLD.dataset
        ) THEN
            RETURN OLD;
        END IF;
    ELSIF
        (
            TG_OP = 'INSERT'
            OR (NEW.ingest_run_id, NEW.dataset, NEW.acquired_at)
            IS NOT DISTINCT FROM (OLD.ingest_run_id, OLD.dataset, OLD.acquired_at)
        )
        AND EXISTS (
            SELECT 1 FROM nodd_wal_records AS r
            WHERE
                r.status = 'in_progress' AND r.ingest_run_id = NEW.ingest_run_id AND r.dataset = NEW.dataset
                AND r.worker_id = NEW.worker_id
        )
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'leases_are_of_claims'
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END
$$
-- ;
CREATE TRIGGER nodd_wal_leases_are_of_claims BEFORE INSERT OR UPDATE OR DELETE ON nodd_wal_leases
FOR EACH ROW EXECUTE FUNCTION nodd_wal_leases_guard()
-- ;
CREATE TRIGGER nodd_wal_leases_are_not_truncated BEFORE TRUNCATE ON nodd_wal_leases
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('leases_are_of_claims')
