-- Batch statements of the ledger for SQLite: a batch is one JSON parameter, read by json_each.
-- status || '' keeps the planner from walking every record of that status for every unit of the batch.

-- name: ensure
-- WHERE TRUE: without it the parser takes ON CONFLICT for a join condition.
INSERT INTO nodd_wal_records (
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, status, attempts,
    integrity_status, metadata_status, stac_status, provenance_status, created_at, updated_at, version,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, changed_by, change_reason, extension, lane
)
SELECT
    value ->> '$.wal_id', value ->> '$.dataset', value ->> '$.object_uri', value ->> '$.provider',
    value ->> '$.queue', value ->> '$.event_time', value ->> '$.time_range_start', value ->> '$.time_range_end',
    'pending', 0, 'unknown', 'unknown', 'unknown', 'unknown', :at, :at, 1,
    value ->> '$.object_version', value ->> '$.object_size', value ->> '$.sequencer', value ->> '$.partition_key',
    value ->> '$.priority', value ->> '$.schema_version', value ->> '$.sqs_message_id',
    value ->> '$.sns_message_id', value ->> '$.topic_arn', value ->> '$.subject', :actor, 'discovered',
    value -> '$.extension', :lane
FROM json_each(:batch)
WHERE TRUE
ON CONFLICT (wal_id) DO NOTHING
RETURNING wal_id;

-- name: statuses
SELECT wal_id, status FROM nodd_wal_records WHERE wal_id IN (SELECT value FROM json_each(:wal_ids));

-- name: lock_admission
-- One writer at a time: the transaction holds the lock already.
SELECT 1;

-- name: supersede
-- Newer is a greater sequencer (padded with zeros on the right; S3 event message structure) or, where one of the two has
-- none, a later event time. Of several newer ones it is the one with the greatest sequencer, then the latest.
-- Ranked and not compared pair by pair: one message can announce 5,000 versions of an object.
WITH touched AS (
    SELECT DISTINCT fresh.object_uri, fresh.dataset, fresh.time_range_start
    FROM nodd_wal_records AS fresh
    WHERE
        fresh.wal_id IN (SELECT value FROM json_each(:wal_ids))
        AND EXISTS (
            SELECT 1 FROM nodd_wal_records AS other
            WHERE
                other.object_uri = fresh.object_uri AND other.dataset = fresh.dataset
                AND other.time_range_start = fresh.time_range_start AND other.wal_id <> fresh.wal_id
        )
),

version AS (
    SELECT
        record.wal_id, record.object_uri, record.dataset, record.time_range_start, record.event_time,
        substr(record.sequencer || printf('%064d', 0), 1, 64) AS place
    FROM touched
    INNER JOIN nodd_wal_records AS record
        ON touched.object_uri = record.object_uri AND touched.dataset = record.dataset
        AND touched.time_range_start = record.time_range_start
),

ranked AS (
    SELECT
        wal_id, event_time, place,
        max(place) OVER object AS last_place,
        first_value(wal_id) OVER (
            PARTITION BY object_uri, dataset, time_range_start
            ORDER BY (place IS NULL), place DESC, event_time DESC, wal_id
        ) AS last_in_place,
        max(CASE WHEN place IS NULL THEN event_time END) OVER object AS last_time,
        first_value(wal_id) OVER (
            PARTITION BY object_uri, dataset, time_range_start
            ORDER BY (place IS NOT NULL), event_time DESC, wal_id
        ) AS last_in_time,
        -- The greatest sequencer of those with a later event time, for one that has none itself.
        max(place || event_time || wal_id) OVER (
            PARTITION BY object_uri, dataset, time_range_start ORDER BY event_time DESC
            GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS later
    FROM version
    WINDOW object AS (PARTITION BY object_uri, dataset, time_range_start)
),

link AS (
    SELECT
        wal_id AS older,
        CASE
            WHEN place < last_place THEN last_in_place
            WHEN place IS NULL AND later IS NOT NULL THEN substr(later, length(later) - 35)
            WHEN event_time < last_time THEN last_in_time
        END AS newer
    FROM ranked
)

INSERT INTO nodd_wal_supersessions (older_wal_id, newer_wal_id, found_at)
SELECT older, newer, :at FROM link
WHERE newer IS NOT NULL AND NOT EXISTS (SELECT 1 FROM nodd_wal_supersessions AS known WHERE known.older_wal_id = link.older)
RETURNING older_wal_id;

-- name: lacking_sidecars
-- Units of these objects that were read, or are being read, without a sidecar, but for those that wait to be completed
-- or are. A completion's version has a blank behind the object's own.
SELECT
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, priority,
    schema_version, object_version, object_size, sequencer, sqs_message_id, sns_message_id, topic_arn, subject,
    attempts, version, lane, replay_reason, replay_run_id
FROM nodd_wal_records AS record
WHERE
    object_uri IN (SELECT value FROM json_each(:uris))
    AND (status || '' = 'in_progress' OR (status || '' = 'succeeded' AND metadata_status = 'suspect'))
    AND replace(coalesce(object_version, ''), ' ', '') = coalesce(object_version, '')
    AND NOT EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = record.wal_id)
    AND NOT EXISTS (
        SELECT 1 FROM nodd_wal_records AS completion
        WHERE
            completion.object_uri = record.object_uri AND completion.dataset = record.dataset
            AND completion.time_range_start = record.time_range_start
            AND substr(completion.object_version, 1, length(coalesce(record.object_version, '')) + 1)
            = coalesce(record.object_version, '') || ' '
            AND (
                completion.status || '' = 'pending'
                OR (completion.status || '' = 'succeeded' AND completion.metadata_status = 'ok')
            )
    )
ORDER BY wal_id;

-- name: superseded_of
SELECT older_wal_id FROM nodd_wal_supersessions WHERE older_wal_id IN (SELECT value FROM json_each(:wal_ids));

-- name: hold
SELECT wal_id, dataset
FROM json_each(:batch) AS unit
INNER JOIN nodd_wal_records ON wal_id = unit.value ->> '$.wal_id' AND attempts = unit.value ->> '$.attempt'
WHERE status || '' = 'in_progress' AND ingest_run_id = :run_id;

-- name: renew_leases
-- Only while a claim of the holder stands: of its run, its worker and the attempt that it was given.
UPDATE nodd_wal_leases SET renewed_at = :at, expires_at = :expires_at
WHERE
    ingest_run_id = :run_id AND worker_id = :worker_id
    AND EXISTS (
        SELECT 1 FROM json_each(:batch) AS unit
        INNER JOIN nodd_wal_records AS record
            ON record.wal_id = unit.value ->> '$.wal_id' AND record.attempts = unit.value ->> '$.attempt'
        WHERE
            record.status || '' = 'in_progress' AND record.ingest_run_id = :run_id AND record.worker_id = :worker_id
            AND record.dataset = nodd_wal_leases.dataset
    );

-- name: lock_statuses
SELECT wal_id, status, version FROM nodd_wal_records WHERE wal_id IN (SELECT value FROM json_each(:wal_ids));

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
    -- By rowid: the row that was picked is not looked for again.
    SELECT rowid AS place, version FROM nodd_wal_records
    WHERE
        status = 'pending' AND dataset = :dataset AND partition_key = :partition
        AND (:lane IS NULL OR lane = :lane)
        AND (:wal_ids IS NULL OR wal_id IN (SELECT value FROM json_each(:wal_ids)))
    ORDER BY lane DESC, (CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END), event_time, wal_id
    LIMIT :limit
) AS picked
WHERE nodd_wal_records.rowid = picked.place AND nodd_wal_records.version = picked.version
RETURNING
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, priority,
    schema_version, object_version, object_size, sequencer, sqs_message_id, sns_message_id, topic_arn, subject,
    attempts, version, lane, replay_reason, replay_run_id;

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
RETURNING wal_id, dataset, created_at, replay_reason;

-- name: fail_runs
-- Due at once: where it cannot be let in now (its dataset is switched off), a later tick does it.
-- Named, because without statistics the planner reads every claim in progress.
UPDATE nodd_wal_records INDEXED BY nodd_wal_records_in_progress SET
    status = 'failed',
    last_error_code = :error_code,
    last_error_message = :error_message,
    next_attempt_at = :at,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :error_code,
    version = version + 1
WHERE
    status = 'in_progress' AND ingest_run_id IN (SELECT value FROM json_each(:run_ids))
    AND (:dataset IS NULL OR dataset = :dataset)
RETURNING wal_id, dataset, attempts;

-- name: fail_expired
-- Named, because without statistics the planner reads every claim in progress.
UPDATE nodd_wal_records INDEXED BY nodd_wal_records_in_progress SET
    status = 'failed',
    last_error_code = :error_code,
    last_error_message = :error_message,
    next_attempt_at = :at,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :error_code,
    version = version + 1
FROM nodd_wal_leases AS lease
WHERE
    lease.expires_at < :at AND status = 'in_progress' AND nodd_wal_records.ingest_run_id = lease.ingest_run_id
    AND nodd_wal_records.dataset = lease.dataset
RETURNING wal_id, dataset, attempts;

-- name: readmit
UPDATE nodd_wal_records SET
    status = 'pending',
    replay_reason = :reason,
    -- A retry goes on with what let the unit in.
    replay_run_id = CASE WHEN :reason = 'retry' THEN replay_run_id ELSE :replay_run_id END,
    lane = coalesce(:lane, lane),
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
    AND attempts < coalesce(policy.value -> '$.attempts_of' ->> last_error_code, policy.value ->> '$.max_attempts')
    AND last_error_code NOT IN (SELECT value FROM json_each(policy.value, '$.never'))
    -- An object that has been overwritten cannot be read any more.
    AND NOT EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = nodd_wal_records.wal_id)
RETURNING wal_id, dataset, partition_key;

-- name: due
-- Named, because without statistics the planner prefers all failed records to the few that are due.
SELECT wal_id
FROM nodd_wal_records INDEXED BY nodd_wal_records_by_due_time
WHERE
    status = 'failed' AND next_attempt_at <= :at AND dataset IN (SELECT value FROM json_each(:datasets))
ORDER BY next_attempt_at, wal_id
LIMIT :limit;

-- name: decide
-- The decision of a person on records as they stand at a version; those that have moved since, or that somebody
-- discarded, are left out.
INSERT INTO governance_log (
    at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details
)
SELECT
    :at, :actor, :action, record.dataset, record.wal_id, record.version + 1, record.status, :to_status, :why,
    :change_ref, :details
FROM json_each(:batch) AS wanted
INNER JOIN nodd_wal_records AS record
    ON record.wal_id = wanted.value ->> '$.wal_id' AND record.version = wanted.value ->> '$.version'
WHERE
    record.status || '' = :from_status
    AND NOT EXISTS (
        SELECT 1 FROM quarantine_cases AS c
        WHERE c.wal_id = record.wal_id AND c.quarantined_version = record.version AND c.state = 'discarded'
    )
ORDER BY record.wal_id
RETURNING wal_id;

-- name: succeeded_of_run
-- Of these units, those whose success is still that run's.
SELECT wal_id, version FROM nodd_wal_records
WHERE wal_id IN (SELECT value FROM json_each(:wal_ids)) AND status || '' = 'succeeded' AND ingest_run_id = :run_id;

-- name: override
UPDATE nodd_wal_records SET
    status = 'pending',
    replay_reason = :reason,
    replay_run_id = :replay_run_id,
    lane = 'bulk',
    updated_at = :at,
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
WHERE wal_id IN (SELECT value FROM json_each(:wal_ids)) AND status || '' = :from_status
RETURNING wal_id, dataset, partition_key;

-- name: record_outcomes
INSERT INTO nodd_wal_outcomes (
    wal_id, attempt, at, run_id, replay_run_id, item_sha256, provenance_sha256, code_version, superseded
)
SELECT
    value ->> '$.wal_id', value ->> '$.attempt', :at, :run_id, value ->> '$.replay_run_id', value ->> '$.item_sha256',
    value ->> '$.provenance_sha256', :code_version, value ->> '$.superseded'
FROM json_each(:batch);

-- name: record_mismatches
INSERT INTO replay_mismatches (
    wal_id, attempt, earlier_attempt, at, dataset, replay_run_id, item_differs, provenance_differs, permitted
)
SELECT
    now_.wal_id, now_.attempt, earlier.attempt, :at, record.dataset, now_.replay_run_id,
    now_.item_sha256 IS NOT earlier.item_sha256,
    now_.provenance_sha256 IS NOT earlier.provenance_sha256,
    coalesce((
        SELECT decision.action = 'repair_and_replace'
        FROM governance_log AS decision
        WHERE decision.wal_id = now_.wal_id AND decision.from_status = 'succeeded'
        ORDER BY decision.record_version DESC
        LIMIT 1
    ), FALSE)
FROM json_each(:batch) AS unit
INNER JOIN nodd_wal_outcomes AS now_
    ON now_.wal_id = unit.value ->> '$.wal_id' AND now_.attempt = unit.value ->> '$.attempt'
INNER JOIN nodd_wal_records AS record ON now_.wal_id = record.wal_id
INNER JOIN nodd_wal_outcomes AS earlier ON now_.wal_id = earlier.wal_id AND earlier.attempt = (
    SELECT max(before.attempt) FROM nodd_wal_outcomes AS before
    WHERE before.wal_id = now_.wal_id AND before.attempt < now_.attempt
)
WHERE
    NOT now_.superseded AND NOT earlier.superseded AND (
        now_.item_sha256 IS NOT earlier.item_sha256 OR now_.provenance_sha256 IS NOT earlier.provenance_sha256
    )
RETURNING wal_id, dataset, attempt, earlier_attempt, permitted;

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
