-- Statements of the ledger that are the same in both databases.

-- name: get
SELECT * FROM nodd_wal_records WHERE wal_id = :wal_id;

-- name: history
SELECT wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
FROM nodd_wal_transitions
WHERE wal_id = :wal_id
ORDER BY version;

-- name: find
SELECT * FROM nodd_wal_records
WHERE
    (:dataset IS NULL OR dataset = :dataset)
    AND (:status IS NULL OR status = :status)
    AND (:partition IS NULL OR partition_key = :partition)
    AND (:error_code IS NULL OR last_error_code = :error_code)
    AND (:after IS NULL OR wal_id > :after)
ORDER BY wal_id
LIMIT :limit;

-- name: pending_by_partition
SELECT dataset, partition_key, count(*) AS units, min(event_time) AS oldest
FROM nodd_wal_records
WHERE status = 'pending'
GROUP BY dataset, partition_key
ORDER BY dataset, partition_key;

-- name: counts
SELECT dataset, status, count(*) AS units
FROM nodd_wal_records
GROUP BY dataset, status;

-- name: in_progress_runs
SELECT DISTINCT ingest_run_id FROM nodd_wal_records WHERE status = 'in_progress' ORDER BY ingest_run_id;

-- name: in_flight
SELECT count(*) FROM nodd_wal_records WHERE status IN ('pending', 'in_progress');

-- name: replay_reason
SELECT code FROM replay_reasons WHERE code = :code;

-- name: replay_reasons
SELECT code, meaning FROM replay_reasons ORDER BY code;

-- name: govern_replay_reason
INSERT INTO replay_reasons (code, meaning) VALUES (:code, :meaning) ON CONFLICT (code) DO NOTHING;
