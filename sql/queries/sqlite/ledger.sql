-- Batch statements of the ledger for SQLite: a batch is one JSON parameter, read by json_each.
-- status || '' keeps the planner from walking every record of that status for every unit of the batch.

-- name: ensure
-- WHERE TRUE: without it the parser takes ON CONFLICT for a join condition.
INSERT INTO nodd_wal_records (
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, status, attempts,
    integrity_status, metadata_status, stac_status, provenance_status, created_at, updated_at, version,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, changed_by, change_reason, extension
)
SELECT
    value ->> '$.wal_id', value ->> '$.dataset', value ->> '$.object_uri', value ->> '$.provider',
    value ->> '$.queue', value ->> '$.event_time', value ->> '$.time_range_start', value ->> '$.time_range_end',
    'pending', 0, 'unknown', 'unknown', 'unknown', 'unknown', :at, :at, 1,
    value ->> '$.object_version', value ->> '$.object_size', value ->> '$.sequencer', value ->> '$.partition_key',
    value ->> '$.priority', value ->> '$.schema_version', value ->> '$.sqs_message_id',
    value ->> '$.sns_message_id', value ->> '$.topic_arn', value ->> '$.subject', :actor, 'discovered',
    value -> '$.extension'
FROM json_each(:batch)
WHERE TRUE
ON CONFLICT (wal_id) DO NOTHING
RETURNING wal_id;

-- name: statuses
SELECT wal_id, status FROM nodd_wal_records WHERE wal_id IN (SELECT value FROM json_each(:wal_ids));

-- name: held
SELECT wal_id, attempts FROM nodd_wal_records
WHERE
    wal_id IN (SELECT value FROM json_each(:wal_ids)) AND status || '' = 'in_progress' AND ingest_run_id = :run_id;

-- name: lock_statuses
SELECT wal_id, status FROM nodd_wal_records WHERE wal_id IN (SELECT value FROM json_each(:wal_ids));

-- name: claim
UPDATE nodd_wal_records SET
    status = 'in_progress',
    attempts = nodd_wal_records.attempts + 1,
    last_attempt_at = :at,
    updated_at = :at,
    ingest_run_id = :run_id,
    worker_id = :worker_id,
    changed_by = :worker_id,
    change_reason = 'claimed',
    version = picked.version + 1
FROM (
    SELECT wal_id, version FROM nodd_wal_records
    WHERE
        status = 'pending' AND dataset = :dataset AND partition_key = :partition
        AND (:wal_ids IS NULL OR wal_id IN (SELECT value FROM json_each(:wal_ids)))
    ORDER BY CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END, event_time, wal_id
    LIMIT :limit
) AS picked
WHERE nodd_wal_records.wal_id = picked.wal_id AND nodd_wal_records.version = picked.version
RETURNING
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, priority,
    schema_version, object_version, object_size, sequencer, sqs_message_id, sns_message_id, topic_arn, subject,
    attempts, version;

-- name: settle_succeeded
UPDATE nodd_wal_records SET
    status = 'succeeded',
    last_error_code = NULL,
    last_error_message = NULL,
    integrity_status = unit.value ->> '$.integrity_status',
    metadata_status = unit.value ->> '$.metadata_status',
    stac_status = unit.value ->> '$.stac_status',
    provenance_status = unit.value ->> '$.provenance_status',
    stac_item_id = unit.value ->> '$.stac_item_id',
    stac_collection_id = unit.value ->> '$.stac_collection_id',
    stac_item_href = unit.value ->> '$.stac_item_href',
    updated_at = :at,
    changed_by = :actor,
    change_reason = 'completed',
    version = version + 1
FROM json_each(:batch) AS unit
WHERE
    wal_id = unit.value ->> '$.wal_id' AND attempts = unit.value ->> '$.attempt'
    AND status || '' = 'in_progress' AND ingest_run_id = :run_id
RETURNING wal_id;

-- name: settle_failed
UPDATE nodd_wal_records SET
    status = 'failed',
    last_error_code = unit.value ->> '$.error_code',
    last_error_message = unit.value ->> '$.error_message',
    integrity_status = unit.value ->> '$.integrity_status',
    metadata_status = unit.value ->> '$.metadata_status',
    stac_status = unit.value ->> '$.stac_status',
    provenance_status = unit.value ->> '$.provenance_status',
    stac_item_id = coalesce(unit.value ->> '$.stac_item_id', stac_item_id),
    stac_collection_id = coalesce(unit.value ->> '$.stac_collection_id', stac_collection_id),
    stac_item_href = coalesce(unit.value ->> '$.stac_item_href', stac_item_href),
    next_attempt_at = unit.value ->> '$.next_attempt_at',
    updated_at = :at,
    changed_by = :actor,
    change_reason = unit.value ->> '$.error_code',
    version = version + 1
FROM json_each(:batch) AS unit
WHERE
    wal_id = unit.value ->> '$.wal_id' AND attempts = unit.value ->> '$.attempt'
    AND status || '' = 'in_progress' AND ingest_run_id = :run_id
RETURNING wal_id;

-- name: fail_lost
UPDATE nodd_wal_records SET
    status = 'failed',
    last_error_code = :error_code,
    last_error_message = :error_message,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :error_code,
    version = version + 1
WHERE
    status = 'in_progress'
    AND (ingest_run_id IN (SELECT value FROM json_each(:run_ids)) OR last_attempt_at < :before)
RETURNING wal_id, dataset, attempts;

-- name: readmit
UPDATE nodd_wal_records SET
    status = 'pending',
    replay_reason = :reason,
    ingest_run_id = coalesce(:run_id, ingest_run_id),
    next_attempt_at = NULL,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
FROM json_each(:policy) AS policy
WHERE
    wal_id IN (SELECT value FROM json_each(:wal_ids))
    AND status || '' = 'failed' AND dataset = policy.value ->> '$.dataset'
    AND attempts < policy.value ->> '$.max_attempts'
    AND last_error_code NOT IN (SELECT value FROM json_each(policy.value, '$.never'))
RETURNING wal_id, dataset, partition_key;

-- name: due
-- Named, because without statistics the planner prefers all failed records to the few that are due.
SELECT wal_id
FROM nodd_wal_records INDEXED BY nodd_wal_records_by_due_time
WHERE
    status = 'failed' AND next_attempt_at <= :at
    AND EXISTS (
        SELECT 1 FROM json_each(:policy) AS policy
        WHERE
            dataset = policy.value ->> '$.dataset' AND attempts < policy.value ->> '$.max_attempts'
            AND last_error_code NOT IN (SELECT value FROM json_each(policy.value, '$.never'))
    )
ORDER BY next_attempt_at, wal_id
LIMIT :limit;

-- name: quarantine
UPDATE nodd_wal_records SET
    status = 'quarantined',
    last_error_code = coalesce(last_error_code, :reason),
    next_attempt_at = NULL,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
WHERE wal_id IN (SELECT value FROM json_each(:wal_ids)) AND status || '' IN ('pending', 'failed')
RETURNING wal_id;
