-- Batch statements of the ledger for PostgreSQL: a batch is one JSON parameter, read by jsonb_to_recordset.
-- Rows are written or locked in the order of wal_id, so that two batches that overlap cannot deadlock.
-- FOR NO KEY UPDATE where a claim is taken back: an admission that refers to the record by a foreign key does not hold it.
-- status || '' keeps the planner from walking every record of that status for every unit of the batch.

-- name: ensure
INSERT INTO nodd_wal_records (
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, status, attempts,
    integrity_status, metadata_status, stac_status, provenance_status, created_at, updated_at, version,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, changed_by, change_reason, extension, lane
)
SELECT
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, 'pending', 0,
    'unknown', 'unknown', 'unknown', 'unknown', CAST(:at AS timestamptz), CAST(:at AS timestamptz), 1,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, :actor, 'discovered', extension, :lane
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

-- name: lock_admission
-- "kfma" in ASCII. Two versions of one object that are admitted at the same time would not see each other.
SELECT pg_advisory_xact_lock(1801875821);

-- name: supersede
-- Newer is a greater sequencer (padded with zeros on the right; S3 event message structure) or, where one of the two has
-- none, a later event time. Of several newer ones it is the one with the greatest sequencer, then the latest.
-- Ranked and not compared pair by pair: one message can announce 5,000 versions of an object.
WITH touched AS (
    SELECT DISTINCT fresh.object_uri, fresh.dataset, fresh.time_range_start
    FROM nodd_wal_records AS fresh
    WHERE
        fresh.wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
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
        rpad(record.sequencer, 64, '0') COLLATE "C" AS place
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
        max(place || to_char(event_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || wal_id) OVER (
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
SELECT older, newer, CAST(:at AS timestamptz) FROM link WHERE newer IS NOT NULL
ORDER BY older COLLATE "C"
ON CONFLICT (older_wal_id) DO NOTHING
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
    object_uri IN (SELECT jsonb_array_elements_text(CAST(:uris AS jsonb)))
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
SELECT older_wal_id FROM nodd_wal_supersessions
WHERE older_wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)));

-- name: hold
-- Nobody takes or settles these claims until the transaction ends.
SELECT record.wal_id, record.dataset
FROM nodd_wal_records AS record
INNER JOIN jsonb_to_recordset(CAST(:batch AS jsonb)) AS unit (wal_id text, attempt integer)
    ON record.wal_id = unit.wal_id AND record.attempts = unit.attempt
WHERE record.status || '' = 'in_progress' AND record.ingest_run_id = :run_id
ORDER BY record.wal_id
FOR SHARE OF record;

-- name: renew_leases
-- Only while a claim of the holder stands: of its run, its worker and the attempt that it was given.
UPDATE nodd_wal_leases AS lease SET renewed_at = :at, expires_at = :expires_at
WHERE
    lease.ingest_run_id = :run_id AND lease.worker_id = :worker_id
    AND EXISTS (
        SELECT 1 FROM nodd_wal_records AS record
        INNER JOIN jsonb_to_recordset(CAST(:batch AS jsonb)) AS unit (wal_id text, attempt integer)
            ON record.wal_id = unit.wal_id AND record.attempts = unit.attempt
        WHERE
            record.status || '' = 'in_progress' AND record.ingest_run_id = :run_id AND record.worker_id = :worker_id
            AND record.dataset = lease.dataset
    );

-- name: lock_statuses
SELECT wal_id, status, version FROM nodd_wal_records
WHERE wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
ORDER BY wal_id
FOR UPDATE;

-- name: claim
WITH picked AS (
    SELECT wal_id, version FROM nodd_wal_records
    WHERE
        status = 'pending' AND dataset = :dataset AND partition_key = :partition
        AND (:lane IS NULL OR lane = :lane)
        AND (
            CAST(:wal_ids AS jsonb) IS NULL
            OR wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
        )
    ORDER BY lane DESC, (CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END), event_time, wal_id
    LIMIT :limit
    -- Another run's claims are passed over, not waited for, and so is what a newer version is about to supersede.
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
    attempts, record.version, lane, replay_reason, replay_run_id;

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
RETURNING record.wal_id, record.dataset, record.created_at, record.replay_reason;

-- name: fail_runs
-- Due at once: where it cannot be let in now (its dataset is switched off), a later tick does it.
WITH lost AS (
    SELECT wal_id FROM nodd_wal_records
    WHERE
        status = 'in_progress'
        AND ingest_run_id IN (SELECT jsonb_array_elements_text(CAST(:run_ids AS jsonb)))
        AND (CAST(:dataset AS text) IS NULL OR dataset = :dataset)
    ORDER BY wal_id
    -- A row that somebody holds is being written or settled: it is not lost.
    FOR NO KEY UPDATE SKIP LOCKED
)

UPDATE nodd_wal_records AS record SET
    status = 'failed',
    last_error_code = :error_code,
    last_error_message = :error_message,
    next_attempt_at = :at,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :error_code,
    version = version + 1
FROM lost
WHERE record.wal_id = lost.wal_id
RETURNING record.wal_id, record.dataset, record.attempts;

-- name: fail_expired
WITH lost AS (
    SELECT record.wal_id
    FROM nodd_wal_leases AS lease
    INNER JOIN nodd_wal_records AS record
        ON lease.ingest_run_id = record.ingest_run_id AND lease.dataset = record.dataset
    WHERE lease.expires_at < CAST(:at AS timestamptz) AND record.status = 'in_progress'
    ORDER BY record.wal_id
    FOR NO KEY UPDATE OF record SKIP LOCKED
)

UPDATE nodd_wal_records AS record SET
    status = 'failed',
    last_error_code = :error_code,
    last_error_message = :error_message,
    next_attempt_at = :at,
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
    INNER JOIN jsonb_to_recordset(CAST(:policy AS jsonb)) AS policy (
        dataset text, max_attempts integer, attempts_of jsonb, never jsonb
    ) ON record.dataset = policy.dataset
    WHERE
        record.wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
        AND record.status || '' = 'failed'
        AND record.attempts
        < coalesce(CAST(policy.attempts_of ->> record.last_error_code AS integer), policy.max_attempts)
        AND NOT jsonb_exists(policy.never, record.last_error_code)
        -- An object that has been overwritten cannot be read any more.
        AND NOT EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = record.wal_id)
    ORDER BY record.wal_id
    FOR NO KEY UPDATE OF record
)

UPDATE nodd_wal_records AS record SET
    status = 'pending',
    replay_reason = :reason,
    -- A retry goes on with what let the unit in.
    replay_run_id = CASE WHEN :reason = 'retry' THEN record.replay_run_id ELSE :replay_run_id END,
    lane = coalesce(:lane, record.lane),
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
SELECT wal_id
FROM nodd_wal_records
WHERE
    status = 'failed' AND next_attempt_at <= :at
    AND dataset IN (SELECT jsonb_array_elements_text(CAST(:datasets AS jsonb)))
ORDER BY next_attempt_at, wal_id
LIMIT :limit
FOR UPDATE SKIP LOCKED;

-- name: decide
-- The decision of a person on records as they stand at a version; those that have moved since, or that somebody
-- discarded, are left out.
WITH unit AS (
    SELECT record.wal_id, record.version, record.dataset, record.status
    FROM nodd_wal_records AS record
    INNER JOIN jsonb_to_recordset(CAST(:batch AS jsonb)) AS wanted (wal_id text, version integer)
        ON record.wal_id = wanted.wal_id AND record.version = wanted.version
    WHERE
        record.status || '' = :from_status
        AND NOT EXISTS (
            SELECT 1 FROM quarantine_cases AS c
            WHERE c.wal_id = record.wal_id AND c.quarantined_version = record.version AND c.state = 'discarded'
        )
    ORDER BY record.wal_id
    FOR UPDATE OF record
)

INSERT INTO governance_log (
    at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details
)
SELECT
    CAST(:at AS timestamptz), :actor, :action, dataset, wal_id, version + 1, status, :to_status, :why, :change_ref,
    CAST(:details AS jsonb)
FROM unit
ORDER BY wal_id
RETURNING wal_id;

-- name: succeeded_of_run
-- Of these units, those whose success is still that run's.
SELECT wal_id, version FROM nodd_wal_records
WHERE wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb))) AND status || '' = 'succeeded' AND ingest_run_id = :run_id;

-- name: override
UPDATE nodd_wal_records AS record SET
    status = 'pending',
    replay_reason = :reason,
    replay_run_id = :replay_run_id,
    lane = 'bulk',
    updated_at = :at,
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
WHERE
    record.wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
    AND record.status || '' = :from_status
RETURNING record.wal_id, record.dataset, record.partition_key;

-- name: record_outcomes
INSERT INTO nodd_wal_outcomes (
    wal_id, attempt, at, run_id, replay_run_id, item_sha256, provenance_sha256, code_version, superseded
)
SELECT
    wal_id, attempt, CAST(:at AS timestamptz), :run_id, replay_run_id, item_sha256, provenance_sha256, :code_version,
    superseded
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS outcome (
    wal_id text, attempt integer, replay_run_id text, item_sha256 text, provenance_sha256 text, superseded boolean
)
ORDER BY wal_id COLLATE "C";

-- name: record_mismatches
INSERT INTO replay_mismatches (
    wal_id, attempt, earlier_attempt, at, dataset, replay_run_id, item_differs, provenance_differs, permitted
)
SELECT
    now_.wal_id, now_.attempt, earlier.attempt, CAST(:at AS timestamptz), record.dataset, now_.replay_run_id,
    now_.item_sha256 IS DISTINCT FROM earlier.item_sha256,
    now_.provenance_sha256 IS DISTINCT FROM earlier.provenance_sha256,
    coalesce((
        SELECT decision.action = 'repair_and_replace'
        FROM governance_log AS decision
        WHERE decision.wal_id = now_.wal_id AND decision.from_status = 'succeeded'
        ORDER BY decision.record_version DESC
        LIMIT 1
    ), FALSE)
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS unit (wal_id text, attempt integer)
INNER JOIN nodd_wal_outcomes AS now_ ON unit.wal_id = now_.wal_id AND unit.attempt = now_.attempt
INNER JOIN nodd_wal_records AS record ON now_.wal_id = record.wal_id
INNER JOIN nodd_wal_outcomes AS earlier ON now_.wal_id = earlier.wal_id AND earlier.attempt = (
    SELECT max(before.attempt) FROM nodd_wal_outcomes AS before
    WHERE before.wal_id = now_.wal_id AND before.attempt < now_.attempt
)
WHERE
    NOT now_.superseded AND NOT earlier.superseded AND (
        now_.item_sha256 IS DISTINCT FROM earlier.item_sha256
        OR now_.provenance_sha256 IS DISTINCT FROM earlier.provenance_sha256
    )
RETURNING wal_id, dataset, attempt, earlier_attempt, permitted;

-- name: quarantine
WITH unit AS (
    SELECT wal_id FROM nodd_wal_records
    WHERE
        wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
        AND status || '' IN ('pending', 'failed')
    ORDER BY wal_id
    FOR NO KEY UPDATE
)

UPDATE nodd_wal_records AS record SET
    status = 'quarantined',
    last_error_code = coalesce(record.last_error_code, :reason),
    next_attempt_at = NULL,
    updated_at = :at,
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
FROM unit
WHERE record.wal_id = unit.wal_id
RETURNING record.wal_id;
