-- The ledger (NODD WAL): what became of every object. States and their meaning: kfm_dagster/ledger/state_machine.py.
--
-- A trigger refuses with the text "rule: wal_id: from > to". RAISE takes only a literal before SQLite 3.47, so the text
-- comes from a JSON path: one that does not begin with $ is an error that quotes it. The RAISE behind it makes the
-- statement abortable (rows that it changed earlier are restored) and speaks when wal_id is null.

-- Why a failed record may be tried again; governed codes are added as rows.
CREATE TABLE replay_reasons (
    code text NOT NULL,
    meaning text NOT NULL,
    CONSTRAINT replay_reasons_one_row_per_code PRIMARY KEY (code),
    CONSTRAINT replay_reasons_code_is_short CHECK (length(code) BETWEEN 1 AND 60)
) STRICT
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
    wal_id text NOT NULL,
    dataset text NOT NULL,
    object_uri text NOT NULL,
    provider text NOT NULL,
    queue text NOT NULL,
    event_time text NOT NULL,
    time_range_start text NOT NULL,
    time_range_end text NOT NULL,
    status text NOT NULL,
    attempts integer NOT NULL,
    last_attempt_at text,
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
    created_at text NOT NULL,
    updated_at text NOT NULL,
    version integer NOT NULL,
    -- The extension columns; kfm_dagster/ledger/record.py gives the reason of each.
    object_version text,
    object_size integer,
    sequencer text,
    partition_key text NOT NULL,
    priority text NOT NULL,
    schema_version text NOT NULL,
    sqs_message_id text,
    sns_message_id text,
    topic_arn text,
    subject text,
    next_attempt_at text,
    changed_by text NOT NULL,
    change_reason text NOT NULL,
    extension text NOT NULL,
    -- Two records of one unit would be ingested twice.
    CONSTRAINT nodd_wal_records_one_record_per_unit PRIMARY KEY (wal_id),
    -- A reason outside the vocabulary could not be counted or governed.
    CONSTRAINT nodd_wal_records_replay_reason_is_governed FOREIGN KEY (replay_reason) REFERENCES replay_reasons (code),
    -- Another spelling of the same id would be another unit.
    CONSTRAINT nodd_wal_records_wal_id_is_uuid
    CHECK (wal_id LIKE '________-____-____-____-____________' AND wal_id NOT GLOB '*[^0-9a-f-]*'),
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
    -- Text in one form only sorts as time.
    CONSTRAINT nodd_wal_records_times_are_rfc3339 CHECK (
        event_time GLOB '????-??-??T??:??:??.??????Z' AND time_range_start GLOB '????-??-??T??:??:??.??????Z'
        AND time_range_end GLOB '????-??-??T??:??:??.??????Z' AND created_at GLOB '????-??-??T??:??:??.??????Z'
        AND updated_at GLOB '????-??-??T??:??:??.??????Z'
        AND coalesce(last_attempt_at GLOB '????-??-??T??:??:??.??????Z', TRUE)
        AND coalesce(next_attempt_at GLOB '????-??-??T??:??:??.??????Z', TRUE)
    ),
    -- A unit filed under another day would never be claimed by the run of its partition.
    CONSTRAINT nodd_wal_records_partition_is_day_of_start CHECK (partition_key = substr(time_range_start, 1, 10)),
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
    CONSTRAINT nodd_wal_records_extension_is_object CHECK (json_type(extension) = 'object')
) STRICT
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
    wal_id text NOT NULL,
    version integer NOT NULL,
    at text NOT NULL,
    actor text NOT NULL,
    from_status text,
    to_status text NOT NULL,
    reason text NOT NULL,
    run_id text,
    attempts integer NOT NULL,
    -- The other mutable columns after the change; at version 1 every other column.
    fields text NOT NULL,
    CONSTRAINT nodd_wal_transitions_one_row_per_version PRIMARY KEY (wal_id, version)
) STRICT
-- ;
-- A record begins at the beginning: anything else would be a status without a history (WSM-03).
CREATE TRIGGER nodd_wal_records_begin_pending BEFORE INSERT ON nodd_wal_records
WHEN NOT coalesce(
    NEW.status = 'pending' AND NEW.attempts = 0 AND NEW.version = 1 AND NEW.created_at = NEW.updated_at
    AND NEW.integrity_status = 'unknown' AND NEW.metadata_status = 'unknown'
    AND NEW.stac_status = 'unknown' AND NEW.provenance_status = 'unknown'
    AND NEW.last_attempt_at IS NULL AND NEW.last_error_code IS NULL AND NEW.last_error_message IS NULL
    AND NEW.stac_item_id IS NULL AND NEW.stac_collection_id IS NULL AND NEW.stac_item_href IS NULL
    AND NEW.replay_reason IS NULL, FALSE
)
BEGIN
    SELECT json_extract('{}', 'record_begins_pending: ' || NEW.wal_id || ': null > ' || coalesce(NEW.status, 'null'));
    SELECT RAISE(ABORT, 'record_begins_pending');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger; a second record of a unit is refused before it gets there.
CREATE TRIGGER nodd_wal_records_unit_has_one_record BEFORE INSERT ON nodd_wal_records
WHEN EXISTS (
    SELECT 1 FROM nodd_wal_records AS r
    WHERE
        r.object_uri = NEW.object_uri AND r.dataset = NEW.dataset AND r.time_range_start = NEW.time_range_start
        AND coalesce('=' || r.object_version, '') = coalesce('=' || NEW.object_version, '')
        AND r.wal_id <> NEW.wal_id
)
BEGIN
    SELECT json_extract('{}', 'unit_has_one_record: ' || NEW.wal_id || ': null > ' || NEW.status);
    SELECT RAISE(ABORT, 'unit_has_one_record');
END
-- ;
-- Every update is a transition, and every other ordered pair of states is illegal (WSM-02).
CREATE TRIGGER nodd_wal_records_transition_is_legal BEFORE UPDATE ON nodd_wal_records
WHEN NOT coalesce(
    OLD.status || '>' || NEW.status IN (
        'pending>in_progress', 'in_progress>succeeded', 'in_progress>failed', 'failed>pending',
        'pending>quarantined', 'failed>quarantined'
    ), FALSE
)
BEGIN
    SELECT json_extract(
        '{}', 'illegal_transition: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'illegal_transition');
END
-- ;
-- Optimistic concurrency: a writer that saw an older version is refused.
CREATE TRIGGER nodd_wal_records_version_rises_by_one BEFORE UPDATE ON nodd_wal_records
WHEN NEW.version IS NOT OLD.version + 1
BEGIN
    SELECT json_extract(
        '{}', 'version_rises_by_one: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'version_rises_by_one');
END
-- ;
-- attempts counts claims and nothing else (WAL-09).
CREATE TRIGGER nodd_wal_records_attempts_count_claims BEFORE UPDATE ON nodd_wal_records
WHEN NEW.attempts IS NOT OLD.attempts + CASE WHEN NEW.status = 'in_progress' THEN 1 ELSE 0 END
BEGIN
    SELECT json_extract(
        '{}', 'attempts_count_claims: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'attempts_count_claims');
END
-- ;
-- A claim, and nothing else, stamps the attempt (WSM-04).
CREATE TRIGGER nodd_wal_records_claim_is_stamped BEFORE UPDATE ON nodd_wal_records
WHEN
    NEW.last_attempt_at
    IS NOT CASE WHEN NEW.status = 'in_progress' THEN NEW.updated_at ELSE OLD.last_attempt_at END
BEGIN
    SELECT json_extract(
        '{}', 'claim_is_stamped: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'claim_is_stamped');
END
-- ;
-- A failed record is tried again for a reason (WSM-07).
CREATE TRIGGER nodd_wal_records_replay_has_reason BEFORE UPDATE ON nodd_wal_records
WHEN NEW.status = 'pending' AND NEW.replay_reason IS NULL
BEGIN
    SELECT json_extract(
        '{}', 'replay_has_reason: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'replay_has_reason');
END
-- ;
-- Sub-statuses are the operators' findings; they arrive with the end of an attempt (WAL-07).
CREATE TRIGGER nodd_wal_records_findings_end_an_attempt BEFORE UPDATE ON nodd_wal_records
WHEN OLD.status <> 'in_progress' AND (
    NEW.integrity_status, NEW.metadata_status, NEW.stac_status, NEW.provenance_status,
    NEW.stac_item_id, NEW.stac_collection_id, NEW.stac_item_href
) IS NOT (
    OLD.integrity_status, OLD.metadata_status, OLD.stac_status, OLD.provenance_status,
    OLD.stac_item_id, OLD.stac_collection_id, OLD.stac_item_href
)
BEGIN
    SELECT json_extract(
        '{}', 'findings_end_an_attempt: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'findings_end_an_attempt');
END
-- ;
-- What a unit is never changes; a rewritten object is another unit (WAL-04).
CREATE TRIGGER nodd_wal_records_identity_is_immutable BEFORE UPDATE ON nodd_wal_records
WHEN (
    NEW.wal_id, NEW.dataset, NEW.object_uri, NEW.provider, NEW.queue, NEW.event_time, NEW.time_range_start,
    NEW.time_range_end, NEW.created_at, NEW.object_version, NEW.object_size, NEW.sequencer, NEW.partition_key,
    NEW.priority, NEW.schema_version, NEW.sqs_message_id, NEW.sns_message_id, NEW.topic_arn, NEW.subject,
    NEW.extension
) IS NOT (
    OLD.wal_id, OLD.dataset, OLD.object_uri, OLD.provider, OLD.queue, OLD.event_time, OLD.time_range_start,
    OLD.time_range_end, OLD.created_at, OLD.object_version, OLD.object_size, OLD.sequencer, OLD.partition_key,
    OLD.priority, OLD.schema_version, OLD.sqs_message_id, OLD.sns_message_id, OLD.topic_arn, OLD.subject,
    OLD.extension
)
BEGIN
    SELECT json_extract(
        '{}', 'identity_is_immutable: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'identity_is_immutable');
END
-- ;
-- A record that is gone has no status and no history to explain it.
CREATE TRIGGER nodd_wal_records_are_kept BEFORE DELETE ON nodd_wal_records
BEGIN
    SELECT json_extract('{}', 'records_are_kept: ' || OLD.wal_id || ': ' || OLD.status || ' > null');
    SELECT RAISE(ABORT, 'records_are_kept');
END
-- ;
CREATE TRIGGER nodd_wal_records_write_first_history AFTER INSERT ON nodd_wal_records
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    VALUES (
        NEW.wal_id, NEW.version, NEW.updated_at, NEW.changed_by, NULL, NEW.status, NEW.change_reason,
        NEW.ingest_run_id, NEW.attempts,
        json_object(
            'dataset', NEW.dataset, 'object_uri', NEW.object_uri, 'provider', NEW.provider, 'queue', NEW.queue,
            'event_time', NEW.event_time, 'time_range_start', NEW.time_range_start,
            'time_range_end', NEW.time_range_end, 'created_at', NEW.created_at,
            'object_version', NEW.object_version, 'object_size', NEW.object_size, 'sequencer', NEW.sequencer,
            'partition_key', NEW.partition_key, 'priority', NEW.priority, 'schema_version', NEW.schema_version,
            'sqs_message_id', NEW.sqs_message_id, 'sns_message_id', NEW.sns_message_id, 'topic_arn', NEW.topic_arn,
            'subject', NEW.subject, 'extension', json(NEW.extension),
            'last_attempt_at', NEW.last_attempt_at, 'last_error_code', NEW.last_error_code,
            'last_error_message', NEW.last_error_message, 'integrity_status', NEW.integrity_status,
            'metadata_status', NEW.metadata_status, 'stac_status', NEW.stac_status,
            'provenance_status', NEW.provenance_status, 'stac_item_id', NEW.stac_item_id,
            'stac_collection_id', NEW.stac_collection_id, 'stac_item_href', NEW.stac_item_href,
            'worker_id', NEW.worker_id, 'replay_reason', NEW.replay_reason, 'next_attempt_at', NEW.next_attempt_at
        )
    );
END
-- ;
CREATE TRIGGER nodd_wal_records_write_history AFTER UPDATE ON nodd_wal_records
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    VALUES (
        NEW.wal_id, NEW.version, NEW.updated_at, NEW.changed_by, OLD.status, NEW.status, NEW.change_reason,
        NEW.ingest_run_id, NEW.attempts,
        json_object(
            'last_attempt_at', NEW.last_attempt_at, 'last_error_code', NEW.last_error_code,
            'last_error_message', NEW.last_error_message, 'integrity_status', NEW.integrity_status,
            'metadata_status', NEW.metadata_status, 'stac_status', NEW.stac_status,
            'provenance_status', NEW.provenance_status, 'stac_item_id', NEW.stac_item_id,
            'stac_collection_id', NEW.stac_collection_id, 'stac_item_href', NEW.stac_item_href,
            'worker_id', NEW.worker_id, 'replay_reason', NEW.replay_reason, 'next_attempt_at', NEW.next_attempt_at
        )
    );
END
-- ;
-- A row is accepted only where the record stands at that version without one, so only from the triggers above; this
-- also stops INSERT OR REPLACE, which deletes rows without a DELETE trigger.
CREATE TRIGGER nodd_wal_transitions_are_written_by_the_ledger BEFORE INSERT ON nodd_wal_transitions
WHEN
    EXISTS (SELECT 1 FROM nodd_wal_transitions AS t WHERE t.wal_id = NEW.wal_id AND t.version = NEW.version)
    OR NOT EXISTS (SELECT 1 FROM nodd_wal_records AS r WHERE r.wal_id = NEW.wal_id AND r.version = NEW.version)
BEGIN
    SELECT RAISE(ABORT, 'history_is_written_by_the_ledger');
END
-- ;
CREATE TRIGGER nodd_wal_transitions_are_not_changed BEFORE UPDATE ON nodd_wal_transitions
BEGIN
    SELECT RAISE(ABORT, 'history_is_append_only');
END
-- ;
CREATE TRIGGER nodd_wal_transitions_are_not_deleted BEFORE DELETE ON nodd_wal_transitions
BEGIN
    SELECT RAISE(ABORT, 'history_is_append_only');
END
-- ;
-- Messages received, and what became of each.
CREATE TABLE nodd_wal_deliveries (
    message_id text NOT NULL,
    queue text NOT NULL,
    -- The newest one: SQS accepts a deletion only with the handle of the last receive.
    receipt_handle text NOT NULL,
    receive_count integer NOT NULL,
    first_received_at text NOT NULL,
    received_at text NOT NULL,
    landing_sha256 text NOT NULL,
    sns_message_id text,
    topic_arn text,
    state text NOT NULL,
    settled_at text,
    CONSTRAINT nodd_wal_deliveries_one_row_per_message PRIMARY KEY (message_id),
    -- A message in no known state would be counted nowhere (BEY-03).
    CONSTRAINT nodd_wal_deliveries_state_is_known
    CHECK (state IN ('in_flight', 'rejected', 'ignored', 'deleted', 'dead_lettered')),
    CONSTRAINT nodd_wal_deliveries_receives_are_counted CHECK (receive_count >= 1),
    -- Whether a message has left the queue must be told in one way only.
    CONSTRAINT nodd_wal_deliveries_settled_has_time
    CHECK ((state IN ('deleted', 'dead_lettered')) = (settled_at IS NOT NULL))
) STRICT
-- ;
-- What is still on the queue is little; what has left it grows for ever.
CREATE INDEX nodd_wal_deliveries_by_open_state ON nodd_wal_deliveries (state) WHERE state IN ('in_flight', 'ignored')
-- ;
-- Which units a message announced. No foreign key to the records: a unit without one is what conservation has to find.
CREATE TABLE nodd_wal_delivery_units (
    message_id text NOT NULL,
    wal_id text NOT NULL,
    CONSTRAINT nodd_wal_delivery_units_one_row_per_pair PRIMARY KEY (message_id, wal_id),
    CONSTRAINT nodd_wal_delivery_units_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id)
) STRICT, WITHOUT ROWID
-- ;
CREATE INDEX nodd_wal_delivery_units_by_unit ON nodd_wal_delivery_units (wal_id)
-- ;
-- Records of a message that gave no unit, with the reason, kept for a person.
CREATE TABLE rejected_messages (
    message_id text NOT NULL,
    record_index integer NOT NULL,
    reason_code text NOT NULL,
    detail text NOT NULL,
    body text NOT NULL,
    received_at text NOT NULL,
    CONSTRAINT rejected_messages_one_row_per_record PRIMARY KEY (message_id, record_index),
    CONSTRAINT rejected_messages_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    CONSTRAINT rejected_messages_detail_is_bounded CHECK (length(detail) <= 500)
) STRICT
