-- The ledger (NODD WAL): what became of every object. States and their meaning: kfm_dagster/ledger/state_machine.py.
--
-- A trigger refuses with the text "rule: wal_id: from > to".

-- Why a failed record may be tried again; governed codes are added as rows.
CREATE TABLE replay_reasons (
    code text COLLATE "C" NOT NULL,
    meaning text NOT NULL,
    CONSTRAINT replay_reasons_one_row_per_code PRIMARY KEY (code),
    CONSTRAINT replay_reasons_code_is_short CHECK (length(code) BETWEEN 1 AND 60)
)
-- ;
INSERT INTO replay_reasons (code, meaning) VALUES
    ('backfill', 'a day is ingested again from the bucket'),
    ('dlq-drain', 'its message came from the dead-letter queue'),
    ('incident', 'an incident is repaired'),
    ('retry', 'a failed attempt is tried again under the contract'),
    ('test', 'a test of the pipeline itself')
-- ;
CREATE TABLE nodd_wal_records (
    -- The canonical fields, in the order of the NODD WAL specification, section 3.
    wal_id text COLLATE "C" NOT NULL,
    dataset text NOT NULL,
    object_uri text NOT NULL,
    provider text NOT NULL,
    queue text NOT NULL,
    event_time timestamptz NOT NULL,
    time_range_start timestamptz NOT NULL,
    time_range_end timestamptz NOT NULL,
    status text NOT NULL,
    attempts integer NOT NULL,
    last_attempt_at timestamptz,
    last_error_code text,
    last_error_message text,
    integrity_status text NOT NULL,
    metadata_status text NOT NULL,
    stac_status text NOT NULL,
    provenance_status text NOT NULL,
    stac_item_id text,
    stac_collection_id text,
    stac_item_href text,
    ingest_run_id text,
    worker_id text,
    replay_reason text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version integer NOT NULL,
    -- The extension columns; kfm_dagster/ledger/record.py gives the reason of each.
    object_version text,
    object_size bigint,
    sequencer text,
    partition_key text NOT NULL,
    priority text NOT NULL,
    schema_version text NOT NULL,
    sqs_message_id text,
    sns_message_id text,
    topic_arn text,
    subject text,
    next_attempt_at timestamptz,
    changed_by text NOT NULL,
    change_reason text NOT NULL,
    extension jsonb NOT NULL,
    -- Two records of one unit would be ingested twice.
    CONSTRAINT nodd_wal_records_one_record_per_unit PRIMARY KEY (wal_id),
    -- A reason outside the vocabulary could not be counted or governed.
    CONSTRAINT nodd_wal_records_replay_reason_is_governed FOREIGN KEY (replay_reason) REFERENCES replay_reasons (code),
    -- Another spelling of the same id would be another unit.
    CONSTRAINT nodd_wal_records_wal_id_is_uuid
    CHECK (wal_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'),
    -- A status that nobody knows would never be worked on.
    CONSTRAINT nodd_wal_records_status_is_known
    CHECK (status IN ('pending', 'in_progress', 'succeeded', 'failed', 'quarantined')),
    CONSTRAINT nodd_wal_records_integrity_status_is_known
    CHECK (integrity_status IN ('unknown', 'ok', 'suspect', 'failed')),
    CONSTRAINT nodd_wal_records_metadata_status_is_known
    CHECK (metadata_status IN ('unknown', 'ok', 'suspect', 'failed')),
    CONSTRAINT nodd_wal_records_stac_status_is_known
    CHECK (stac_status IN ('unknown', 'created', 'updated', 'no-op', 'failed')),
    CONSTRAINT nodd_wal_records_provenance_status_is_known
    CHECK (provenance_status IN ('unknown', 'ok', 'partial', 'failed')),
    CONSTRAINT nodd_wal_records_priority_is_known CHECK (priority IN ('high', 'normal', 'low')),
    -- A negative count would grant attempts beyond the limit.
    CONSTRAINT nodd_wal_records_attempts_are_counted CHECK (attempts >= 0),
    -- The version orders the history; it begins at 1.
    CONSTRAINT nodd_wal_records_version_is_positive CHECK (version >= 1),
    -- A success whose Item or provenance is missing would be deleted from the queue and lost.
    CONSTRAINT nodd_wal_records_success_is_complete CHECK (
        status <> 'succeeded' OR (
            integrity_status IN ('ok', 'suspect') AND metadata_status IN ('ok', 'suspect')
            AND stac_status IN ('created', 'updated', 'no-op') AND provenance_status IN ('ok', 'partial')
        )
    ),
    -- Said once more by itself, because reports read stac_status alone.
    CONSTRAINT nodd_wal_records_failed_item_is_no_success CHECK (stac_status <> 'failed' OR status <> 'succeeded'),
    -- A range that ends before it starts finds no partition and breaks every search by time.
    CONSTRAINT nodd_wal_records_time_range_is_ordered CHECK (time_range_start <= time_range_end),
    -- A unit filed under another day would never be claimed by the run of its partition.
    CONSTRAINT nodd_wal_records_partition_is_day_of_start CHECK (
        partition_key = to_char(time_range_start AT TIME ZONE 'UTC', 'YYYY-MM-DD')
    ),
    -- Trouble without a code could be neither selected for replay nor explained.
    CONSTRAINT nodd_wal_records_trouble_has_code
    CHECK (status NOT IN ('failed', 'quarantined') OR last_error_code IS NOT NULL),
    CONSTRAINT nodd_wal_records_error_code_is_bounded CHECK (length(last_error_code) BETWEEN 1 AND 100),
    -- An unbounded text would let one bad object fill the ledger.
    CONSTRAINT nodd_wal_records_error_message_is_bounded CHECK (length(last_error_message) <= 500),
    -- A claim that names no run could not be fenced or recovered.
    CONSTRAINT nodd_wal_records_claim_is_attributed CHECK (
        status <> 'in_progress'
        OR (ingest_run_id IS NOT NULL AND worker_id IS NOT NULL AND last_attempt_at IS NOT NULL)
    ),
    -- A due time means "try again", so only a failed record has one.
    CONSTRAINT nodd_wal_records_due_time_is_of_failed CHECK (next_attempt_at IS NULL OR status = 'failed'),
    -- A change by nobody or for nothing is no audit.
    CONSTRAINT nodd_wal_records_change_is_attributed CHECK (length(changed_by) > 0 AND length(change_reason) > 0),
    CONSTRAINT nodd_wal_records_extension_is_object CHECK (jsonb_typeof(extension) = 'object')
)
-- ;
-- The identity holds for hand-typed records, too, whose wal_id may be any UUID. It also finds records by object.
-- No version and an empty one are two identities, as in wal_id.
CREATE UNIQUE INDEX nodd_wal_records_identity_is_unique
ON nodd_wal_records (object_uri, dataset, time_range_start, coalesce('=' || object_version, ''))
-- ;
-- Claims, what is pending by partition, and counts.
CREATE INDEX nodd_wal_records_by_work ON nodd_wal_records (status, dataset, partition_key)
-- ;
-- What is due for another attempt.
CREATE INDEX nodd_wal_records_by_due_time ON nodd_wal_records (next_attempt_at) WHERE status = 'failed'
-- ;
-- Every change of a record, written by the triggers below and by nobody else. No foreign key: records cannot go.
CREATE TABLE nodd_wal_transitions (
    wal_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    from_status text,
    to_status text NOT NULL,
    reason text NOT NULL,
    run_id text,
    attempts integer NOT NULL,
    -- The other mutable columns after the change; at version 1 every other column.
    fields jsonb NOT NULL,
    CONSTRAINT nodd_wal_transitions_one_row_per_version PRIMARY KEY (wal_id, version)
)
-- ;
-- One voice for every refusal; the trigger gives the rule.
CREATE FUNCTION nodd_wal_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: %: % > %', TG_ARGV[0], coalesce(OLD.wal_id, NEW.wal_id),
        coalesce(OLD.status, 'null'), coalesce(NEW.status, 'null')
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END
$$
-- ;
-- A record begins at the beginning: anything else would be a status without a history (WSM-03).
CREATE TRIGGER nodd_wal_records_begin_pending BEFORE INSERT ON nodd_wal_records
FOR EACH ROW WHEN (
    NOT coalesce(
        NEW.status = 'pending' AND NEW.attempts = 0 AND NEW.version = 1 AND NEW.created_at = NEW.updated_at
        AND NEW.integrity_status = 'unknown' AND NEW.metadata_status = 'unknown'
        AND NEW.stac_status = 'unknown' AND NEW.provenance_status = 'unknown'
        AND NEW.last_attempt_at IS NULL AND NEW.last_error_code IS NULL AND NEW.last_error_message IS NULL
        AND NEW.stac_item_id IS NULL AND NEW.stac_collection_id IS NULL AND NEW.stac_item_href IS NULL
        AND NEW.replay_reason IS NULL, FALSE
    )
)
EXECUTE FUNCTION nodd_wal_refuse('record_begins_pending')
-- ;
-- Every update is a transition, and every other ordered pair of states is illegal (WSM-02).
CREATE TRIGGER nodd_wal_records_transition_is_legal BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (
    NOT coalesce(
        OLD.status || '>' || NEW.status IN (
            'pending>in_progress', 'in_progress>succeeded', 'in_progress>failed', 'failed>pending',
            'pending>quarantined', 'failed>quarantined'
        ), FALSE
    )
)
EXECUTE FUNCTION nodd_wal_refuse('illegal_transition')
-- ;
-- Optimistic concurrency: a writer that saw an older version is refused.
CREATE TRIGGER nodd_wal_records_version_rises_by_one BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (NEW.version IS DISTINCT FROM OLD.version + 1)
EXECUTE FUNCTION nodd_wal_refuse('version_rises_by_one')
-- ;
-- attempts counts claims and nothing else (WAL-09).
CREATE TRIGGER nodd_wal_records_attempts_count_claims BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (
    NEW.attempts IS DISTINCT FROM OLD.attempts + CASE WHEN NEW.status = 'in_progress' THEN 1 ELSE 0 END
)
EXECUTE FUNCTION nodd_wal_refuse('attempts_count_claims')
-- ;
-- A claim, and nothing else, stamps the attempt (WSM-04).
CREATE TRIGGER nodd_wal_records_claim_is_stamped BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (
    NEW.last_attempt_at
    IS DISTINCT FROM CASE WHEN NEW.status = 'in_progress' THEN NEW.updated_at ELSE OLD.last_attempt_at END
)
EXECUTE FUNCTION nodd_wal_refuse('claim_is_stamped')
-- ;
-- A failed record is tried again for a reason (WSM-07).
CREATE TRIGGER nodd_wal_records_replay_has_reason BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (NEW.status = 'pending' AND NEW.replay_reason IS NULL)
EXECUTE FUNCTION nodd_wal_refuse('replay_has_reason')
-- ;
-- Sub-statuses are the operators' findings; they arrive with the end of an attempt (WAL-07).
CREATE TRIGGER nodd_wal_records_findings_end_an_attempt BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (
    OLD.status <> 'in_progress' AND (
        NEW.integrity_status, NEW.metadata_status, NEW.stac_status, NEW.provenance_status,
        NEW.stac_item_id, NEW.stac_collection_id, NEW.stac_item_href
    ) IS DISTINCT FROM (
        OLD.integrity_status, OLD.metadata_status, OLD.stac_status, OLD.provenance_status,
        OLD.stac_item_id, OLD.stac_collection_id, OLD.stac_item_href
    )
)
EXECUTE FUNCTION nodd_wal_refuse('findings_end_an_attempt')
-- ;
-- What a unit is never changes; a rewritten object is another unit (WAL-04).
CREATE TRIGGER nodd_wal_records_identity_is_immutable BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (
    (
        NEW.wal_id, NEW.dataset, NEW.object_uri, NEW.provider, NEW.queue, NEW.event_time, NEW.time_range_start,
        NEW.time_range_end, NEW.created_at, NEW.object_version, NEW.object_size, NEW.sequencer, NEW.partition_key,
        NEW.priority, NEW.schema_version, NEW.sqs_message_id, NEW.sns_message_id, NEW.topic_arn, NEW.subject,
        NEW.extension
    ) IS DISTINCT FROM (
        OLD.wal_id, OLD.dataset, OLD.object_uri, OLD.provider, OLD.queue, OLD.event_time, OLD.time_range_start,
        OLD.time_range_end, OLD.created_at, OLD.object_version, OLD.object_size, OLD.sequencer, OLD.partition_key,
        OLD.priority, OLD.schema_version, OLD.sqs_message_id, OLD.sns_message_id, OLD.topic_arn, OLD.subject,
        OLD.extension
    )
)
EXECUTE FUNCTION nodd_wal_refuse('identity_is_immutable')
-- ;
-- A record that is gone has no status and no history to explain it.
CREATE TRIGGER nodd_wal_records_are_kept BEFORE DELETE ON nodd_wal_records
FOR EACH ROW EXECUTE FUNCTION nodd_wal_refuse('records_are_kept')
-- ;
-- Set-based: one INSERT for the whole statement that changed the records.
CREATE FUNCTION nodd_wal_write_first_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    SELECT
        n.wal_id, n.version, n.updated_at, n.changed_by, NULL, n.status, n.change_reason, n.ingest_run_id, n.attempts,
        jsonb_build_object(
            'dataset', n.dataset, 'object_uri', n.object_uri, 'provider', n.provider, 'queue', n.queue,
            'event_time', n.event_time, 'time_range_start', n.time_range_start,
            'time_range_end', n.time_range_end, 'created_at', n.created_at,
            'object_version', n.object_version, 'object_size', n.object_size, 'sequencer', n.sequencer,
            'partition_key', n.partition_key, 'priority', n.priority, 'schema_version', n.schema_version,
            'sqs_message_id', n.sqs_message_id, 'sns_message_id', n.sns_message_id, 'topic_arn', n.topic_arn,
            'subject', n.subject, 'extension', n.extension,
            'last_attempt_at', n.last_attempt_at, 'last_error_code', n.last_error_code,
            'last_error_message', n.last_error_message, 'integrity_status', n.integrity_status,
            'metadata_status', n.metadata_status, 'stac_status', n.stac_status,
            'provenance_status', n.provenance_status, 'stac_item_id', n.stac_item_id,
            'stac_collection_id', n.stac_collection_id, 'stac_item_href', n.stac_item_href,
            'worker_id', n.worker_id, 'replay_reason', n.replay_reason, 'next_attempt_at', n.next_attempt_at
        )
    FROM new_rows AS n;
    RETURN NULL;
END
$$
-- ;
CREATE TRIGGER nodd_wal_records_write_first_history AFTER INSERT ON nodd_wal_records
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_write_first_history()
-- ;
-- Without nested loops: the plan is kept for the session, and one that suits a statement of one row takes minutes for
-- a batch of thousands.
CREATE FUNCTION nodd_wal_write_history() RETURNS trigger LANGUAGE plpgsql SET enable_nestloop = off AS $$
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    SELECT
        n.wal_id, n.version, n.updated_at, n.changed_by, o.status, n.status, n.change_reason, n.ingest_run_id,
        n.attempts,
        jsonb_build_object(
            'last_attempt_at', n.last_attempt_at, 'last_error_code', n.last_error_code,
            'last_error_message', n.last_error_message, 'integrity_status', n.integrity_status,
            'metadata_status', n.metadata_status, 'stac_status', n.stac_status,
            'provenance_status', n.provenance_status, 'stac_item_id', n.stac_item_id,
            'stac_collection_id', n.stac_collection_id, 'stac_item_href', n.stac_item_href,
            'worker_id', n.worker_id, 'replay_reason', n.replay_reason, 'next_attempt_at', n.next_attempt_at
        )
    FROM new_rows AS n INNER JOIN old_rows AS o ON n.wal_id = o.wal_id;
    RETURN NULL;
END
$$
-- ;
CREATE TRIGGER nodd_wal_records_write_history AFTER UPDATE ON nodd_wal_records
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_write_history()
-- ;
CREATE FUNCTION nodd_wal_refuse_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END
$$
-- ;
CREATE TRIGGER nodd_wal_records_are_not_truncated BEFORE TRUNCATE ON nodd_wal_records
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('records_are_kept')
-- ;
-- A statement that a person types is at depth 0, the triggers above write at depth 1.
CREATE TRIGGER nodd_wal_transitions_are_written_by_the_ledger BEFORE INSERT ON nodd_wal_transitions
FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION nodd_wal_refuse_statement('history_is_written_by_the_ledger')
-- ;
CREATE TRIGGER nodd_wal_transitions_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON nodd_wal_transitions
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('history_is_append_only')
-- ;
-- Messages received, and what became of each.
CREATE TABLE nodd_wal_deliveries (
    message_id text COLLATE "C" NOT NULL,
    queue text NOT NULL,
    -- The newest one: SQS accepts a deletion only with the handle of the last receive.
    receipt_handle text NOT NULL,
    receive_count integer NOT NULL,
    first_received_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    landing_sha256 text NOT NULL,
    sns_message_id text,
    topic_arn text,
    state text NOT NULL,
    settled_at timestamptz,
    CONSTRAINT nodd_wal_deliveries_one_row_per_message PRIMARY KEY (message_id),
    -- A message in no known state would be counted nowhere (BEY-03).
    CONSTRAINT nodd_wal_deliveries_state_is_known
    CHECK (state IN ('in_flight', 'rejected', 'ignored', 'deleted', 'dead_lettered')),
    CONSTRAINT nodd_wal_deliveries_receives_are_counted CHECK (receive_count >= 1),
    -- Whether a message has left the queue must be told in one way only.
    CONSTRAINT nodd_wal_deliveries_settled_has_time
    CHECK ((state IN ('deleted', 'dead_lettered')) = (settled_at IS NOT NULL))
)
-- ;
-- What is still on the queue is little; what has left it grows for ever.
CREATE INDEX nodd_wal_deliveries_by_open_state ON nodd_wal_deliveries (state) WHERE state IN ('in_flight', 'ignored')
-- ;
-- Which units a message announced. No foreign key to the records: a unit without one is what conservation has to find.
CREATE TABLE nodd_wal_delivery_units (
    message_id text COLLATE "C" NOT NULL,
    wal_id text COLLATE "C" NOT NULL,
    CONSTRAINT nodd_wal_delivery_units_one_row_per_pair PRIMARY KEY (message_id, wal_id),
    CONSTRAINT nodd_wal_delivery_units_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id)
)
-- ;
CREATE INDEX nodd_wal_delivery_units_by_unit ON nodd_wal_delivery_units (wal_id)
-- ;
-- Records of a message that gave no unit, with the reason, kept for a person.
CREATE TABLE rejected_messages (
    message_id text COLLATE "C" NOT NULL,
    record_index integer NOT NULL,
    reason_code text NOT NULL,
    detail text NOT NULL,
    body text NOT NULL,
    received_at timestamptz NOT NULL,
    CONSTRAINT rejected_messages_one_row_per_record PRIMARY KEY (message_id, record_index),
    CONSTRAINT rejected_messages_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    CONSTRAINT rejected_messages_detail_is_bounded CHECK (length(detail) <= 500)
)
