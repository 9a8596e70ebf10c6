-- Batch statements of the ledger for PostgreSQL: a batch is one JSON parameter, read by jsonb_to_recordset.
-- Rows are written or locked in the order of wal_id, so that two batches that overlap cannot deadlock.
-- status || '' keeps the planner from walking every record of that status for every unit of the batch.

-- name: ensure
INSERT INTO nodd_wal_records (
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, status, attempts,
    integrity_status, metadata_status, stac_status, provenance_status, created_at, updated_at, version,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, changed_by, change_reason, extension
)
SELECT
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, 'pending', 0,
    'unknown', 'unknown', 'unknown', 'unknown', CAST(:at AS timestamptz), CAST(:at AS timestamptz), 1,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, :actor, 'discovered', extension
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS unit (
    wal_id text, dataset text, object_uri text, provider text, queue text, event_time timestamptz,
    time_range_start timestamptz, time_range_end timestamptz, object_version text, object_size bigint,
    sequencer text, partition_key text, priority text, schema_version text, sqs_message_id text,
    sns_message_id text, topic_arn text, subject text, extension jsonb
)
ORDER BY wal_id COLLATE "C"
ON CONFLICT (wal_id) DO NOTHING
RETURNING wal_id;

-- name: statuses
SELECT wal_id, status FROM nodd_wal_records
WHERE wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)));

-- name: held
SELECT wal_id, attempts FROM nodd_wal_records
WHERE
    wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
    AND status = 'in_progress' AND ingest_run_id = :run_id;

-- name: lock_statuses
SELECT wal_id, status FROM nodd_wal_records
WHERE wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
ORDER BY wal_id
FOR UPDATE;

-- name: claim
WITH picked AS (
    SELECT wal_id, version FROM nodd_wal_records
    WHERE
        status = 'pending' AND dataset = :dataset AND partition_key = :partition
        AND (
            CAST(:wal_ids AS jsonb) IS NULL
            OR wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
        )
    ORDER BY CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END, event_time, wal_id
    LIMIT :limit
    -- Another run's claims are passed over, not waited for.
    FOR UPDATE SKIP LOCKED
)

UPDATE nodd_wal_records AS record SET
    status = 'in_progress',
    attempts = record.attempts + 1,
    last_attempt_at = :at,
    updated_at = :at,
    ingest_run_id = :run_id,
    worker_id = :worker_id,
    changed_by = :worker_id,
    change_reason = 'claimed',
    version = picked.version + 1
FROM picked
WHERE record.wal_id = picked.wal_id AND record.version = picked.version
RETURNING
    record.wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, priority,
    schema_version, object_version, object_size, sequencer, sqs_message_id, sns_message_id, topic_arn, subject,
    attempts, record.version;

-- name: settle_succeeded
UPDATE nodd_wal_records AS record SET
    status = 'succeeded',
    last_error_code = NULL,
    last_error_message = NULL,
    integrity_status = unit.integrity_status,
    metadata_status = unit.metadata_status,
    stac_status = unit.stac_status,
    provenance_status = unit.provenance_status,
    stac_item_id = unit.stac_item_id,
    stac_collection_id = unit.stac_collection_id,
    stac_item_href = unit.stac_item_href,
    updated_at = :at,
    changed_by = :actor,
    change_reason = 'completed',
    version = version + 1
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS unit (
    wal_id text, attempt integer, integrity_status text, metadata_status text, stac_status text,
    provenance_status text, stac_item_id text, stac_collection_id text, stac_item_href text
)
WHERE
    record.wal_id = unit.wal_id AND record.attempts = unit.attempt
    AND record.status || '' = 'in_progress' AND record.ingest_run_id = :run_id
RETURNING record.wal_id;

-- name: settle_failed
UPDATE nodd_wal_records AS record SET
    status = 'failed',
    last_error_code = unit.error_code,
    last_error_message = unit.error_message,
    integrity_status = unit.integrity_status,
    metadata_status = unit.metadata_status,
    stac_status = unit.stac_status,
    provenance_status = unit.provenance_status,
    stac_item_id = coalesce(unit.stac_item_id, record.stac_item_id),
    stac_collection_id = coalesce(unit.stac_collection_id, record.stac_collection_id),
    stac_item_href = coalesce(unit.stac_item_href, record.stac_item_href),
    next_attempt_at = unit.next_attempt_at,
    updated_at = :at,
    changed_by = :actor,
    change_reason = unit.error_code,
    version = version + 1
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS unit (
    wal_id text, attempt integer, error_code text, error_message text, next_attempt_at timestamptz,
    integrity_status text, metadata_status text, stac_status text, provenance_status text, stac_item_id text,
    stac_collection_id text, stac_item_href text
)
WHERE
    record.wal_id = unit.wal_id AND record.attempts = unit.attempt
    AND record.status || '' = 'in_progress' AND record.ingest_run_id = :run_id
RETURNING record.wal_id;

-- name: fail_lost
WITH lost AS (
    SELECT wal_id FROM nodd_wal_records
    WHERE
        status = 'in_progress' AND (
            ingest_run_id IN (SELECT jsonb_array_elements_text(CAST(:run_ids AS jsonb)))
            OR last_attempt_at < CAST(:before AS timestamptz)
        )
    ORDER BY wal_id
    -- A row that somebody holds is being settled: it is not lost.
    FOR UPDATE SKIP LOCKED
)

UPDATE nodd_wal_records AS record SET
    status = 'failed',
    last_error_code = :error_code,
    last_error_message = :error_message,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :error_code,
    version = version + 1
FROM lost
WHERE record.wal_id = lost.wal_id
RETURNING record.wal_id, record.dataset, record.attempts;

-- name: readmit
WITH allowed AS (
    SELECT record.wal_id
    FROM nodd_wal_records AS record
    INNER JOIN jsonb_to_recordset(CAST(:policy AS jsonb)) AS policy (dataset text, max_attempts integer, never jsonb)
        ON record.dataset = policy.dataset
    WHERE
        record.wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
        AND record.status || '' = 'failed' AND record.attempts < policy.max_attempts
        AND NOT jsonb_exists(policy.never, record.last_error_code)
    ORDER BY record.wal_id
    FOR UPDATE OF record
)

UPDATE nodd_wal_records AS record SET
    status = 'pending',
    replay_reason = :reason,
    ingest_run_id = coalesce(:run_id, record.ingest_run_id),
    next_attempt_at = NULL,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
FROM allowed
WHERE record.wal_id = allowed.wal_id
RETURNING record.wal_id, record.dataset, record.partition_key;

-- name: due
SELECT record.wal_id
FROM nodd_wal_records AS record
INNER JOIN jsonb_to_recordset(CAST(:policy AS jsonb)) AS policy (dataset text, max_attempts integer, never jsonb)
    ON record.dataset = policy.dataset
WHERE
    record.status = 'failed' AND record.next_attempt_at <= :at AND record.attempts < policy.max_attempts
    AND NOT jsonb_exists(policy.never, record.last_error_code)
ORDER BY record.next_attempt_at, record.wal_id
LIMIT :limit
FOR UPDATE OF record SKIP LOCKED;

-- name: quarantine
UPDATE nodd_wal_records SET
    status = 'quarantined',
    last_error_code = coalesce(last_error_code, :reason),
    next_attempt_at = NULL,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
WHERE
    wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
    AND status || '' IN ('pending', 'failed')
RETURNING wal_id;
