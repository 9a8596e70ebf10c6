-- Batch statements of the governance log for PostgreSQL: a batch is one JSON parameter, read by jsonb_to_recordset.

-- name: record
INSERT INTO governance_log (
    at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details
)
SELECT
    CAST(:at AS timestamptz), actor, action, dataset, wal_id, record_version, from_status, to_status, reason,
    change_ref, details
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS entry (
    actor text, action text, dataset text, wal_id text, record_version integer, from_status text, to_status text,
    reason text, change_ref text, details jsonb
);

-- name: of_run
SELECT entry_id FROM governance_log
WHERE action = :action AND dataset = :dataset AND details ->> 'run_id' = :run_id
LIMIT 1;
