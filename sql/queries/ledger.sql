-- Statements of the ledger that are the same in both databases.

-- name: get
SELECT * FROM nodd_wal_records WHERE wal_id = :wal_id;

-- name: history
SELECT wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
FROM nodd_wal_transitions
WHERE wal_id = :wal_id
ORDER BY version;

-- name: find
-- One status of one dataset, newest first: an index range. Lists over several are merged from these.
SELECT * FROM nodd_wal_records
WHERE
    status = :status AND dataset = :dataset AND (event_time, wal_id) < (:before_time, :before_id)
    AND (:error_code IS NULL OR last_error_code = :error_code)
    AND (:check_status IS NULL OR :check_status IN (integrity_status, metadata_status))
ORDER BY event_time DESC, wal_id DESC
LIMIT :limit;

-- name: find_in_partition
-- The same of one day: an index range, too, however many later days there are.
SELECT * FROM nodd_wal_records
WHERE
    status = :status AND dataset = :dataset AND partition_key = :partition
    AND (event_time, wal_id) < (:before_time, :before_id)
    AND (:error_code IS NULL OR last_error_code = :error_code)
    AND (:check_status IS NULL OR :check_status IN (integrity_status, metadata_status))
ORDER BY event_time DESC, wal_id DESC
LIMIT :limit;

-- name: datasets_of_status
-- One index lookup per dataset, however many records there are.
WITH RECURSIVE found (dataset) AS (
    SELECT min(dataset) FROM nodd_wal_records WHERE status = :status
    UNION ALL
    SELECT (SELECT min(dataset) FROM nodd_wal_records WHERE status = :status AND dataset > found.dataset)
    FROM found
    WHERE found.dataset IS NOT NULL
)

SELECT dataset FROM found WHERE dataset IS NOT NULL;

-- name: pending_by_partition
SELECT dataset, partition_key, lane, count(*) AS units, min(event_time) AS oldest
FROM nodd_wal_records
WHERE status = 'pending'
GROUP BY dataset, partition_key, lane
ORDER BY dataset, partition_key, lane DESC;

-- name: counts
SELECT dataset, status, count(*) AS units
FROM nodd_wal_records
GROUP BY dataset, status;

-- name: day_counts
SELECT status, count(*) AS units
FROM nodd_wal_records
WHERE
    status IN ('pending', 'in_progress', 'succeeded', 'failed', 'quarantined')
    AND dataset = :dataset AND partition_key = :partition
GROUP BY status;

-- name: day_failing
-- Why units of a day need care. Nobody has to care for one of which a newer version is known, or whose case is closed.
SELECT record.last_error_code AS code, count(*) AS units
FROM nodd_wal_records AS record
WHERE
    record.status IN ('failed', 'quarantined') AND record.dataset = :dataset AND record.partition_key = :partition
    AND record.last_error_code NOT IN ('superseded', 'stale_event')
    AND NOT EXISTS (
        SELECT 1 FROM quarantine_cases AS closed WHERE closed.wal_id = record.wal_id AND closed.state = 'discarded'
    )
GROUP BY record.last_error_code
ORDER BY record.last_error_code;

-- name: day_failing_units
-- The units that day_failing counts, what is quarantined first.
SELECT record.wal_id, record.object_uri, record.status, record.attempts, record.last_error_code, record.last_error_message
FROM nodd_wal_records AS record
WHERE
    record.status IN ('failed', 'quarantined') AND record.dataset = :dataset AND record.partition_key = :partition
    AND record.last_error_code NOT IN ('superseded', 'stale_event')
    AND NOT EXISTS (
        SELECT 1 FROM quarantine_cases AS closed WHERE closed.wal_id = record.wal_id AND closed.state = 'discarded'
    )
ORDER BY record.status DESC, record.event_time DESC, record.wal_id
LIMIT :limit;

-- name: oldest_waiting
SELECT min(created_at) FROM nodd_wal_records WHERE status IN ('pending', 'failed');

-- name: in_progress_runs
SELECT DISTINCT ingest_run_id FROM nodd_wal_records WHERE status = 'in_progress' ORDER BY ingest_run_id;

-- name: in_flight
SELECT count(*) FROM nodd_wal_records
WHERE status IN ('pending', 'in_progress') AND (:lane IS NULL OR lane = :lane);

-- name: holds
SELECT EXISTS (
    SELECT 1 FROM nodd_wal_records
    WHERE status = :status AND dataset = :dataset AND partition_key = :partition
) AS found;

-- name: replay_reason
SELECT code FROM replay_reasons WHERE code = :code;

-- name: replay_reasons
SELECT code, meaning FROM replay_reasons ORDER BY code;

-- name: govern_replay_reason
INSERT INTO replay_reasons (code, meaning) VALUES (:code, :meaning) ON CONFLICT (code) DO NOTHING;

-- name: acquire_lease
INSERT INTO nodd_wal_leases (ingest_run_id, dataset, worker_id, acquired_at, renewed_at, expires_at)
VALUES (:run_id, :dataset, :worker_id, :at, :at, :expires_at)
ON CONFLICT (ingest_run_id, dataset) DO UPDATE SET
    worker_id = excluded.worker_id, renewed_at = excluded.renewed_at, expires_at = excluded.expires_at;

-- name: drop_leases
-- A holder without claims holds nothing.
DELETE FROM nodd_wal_leases
WHERE expires_at < :at AND NOT EXISTS (
    SELECT 1 FROM nodd_wal_records AS record
    WHERE
        record.status = 'in_progress' AND record.ingest_run_id = nodd_wal_leases.ingest_run_id
        AND record.dataset = nodd_wal_leases.dataset
);

-- name: leases
SELECT ingest_run_id, dataset, worker_id, acquired_at, renewed_at, expires_at FROM nodd_wal_leases
ORDER BY expires_at, ingest_run_id, dataset;

-- name: versions_of
-- Every version of the objects of a unit, with what made each obsolete.
SELECT sibling.wal_id, sibling.object_version, sibling.sequencer, sibling.event_time, sibling.status, link.newer_wal_id
FROM nodd_wal_records AS record
INNER JOIN nodd_wal_records AS sibling
    ON record.object_uri = sibling.object_uri AND record.dataset = sibling.dataset
    AND record.time_range_start = sibling.time_range_start
LEFT JOIN nodd_wal_supersessions AS link ON sibling.wal_id = link.older_wal_id
WHERE record.wal_id = :wal_id
ORDER BY sibling.event_time, sibling.wal_id;

-- name: mismatches
SELECT wal_id, attempt, earlier_attempt, at, dataset, replay_run_id, item_differs, provenance_differs, permitted
FROM replay_mismatches
ORDER BY at DESC, wal_id
LIMIT :limit;

-- name: mismatch_counts
SELECT dataset, count(*) AS mismatches FROM replay_mismatches WHERE NOT permitted GROUP BY dataset ORDER BY dataset;
