-- Batch statements of the governance log for SQLite: a batch is one JSON parameter, read by json_each.

-- name: record
INSERT INTO governance_log (
    at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details
)
SELECT
    :at, value ->> '$.actor', value ->> '$.action', value ->> '$.dataset', value ->> '$.wal_id',
    value ->> '$.record_version', value ->> '$.from_status', value ->> '$.to_status', value ->> '$.reason',
    value ->> '$.change_ref', value -> '$.details'
FROM json_each(:batch);

-- name: of_run
SELECT entry_id FROM governance_log
WHERE action = :action AND dataset = :dataset AND details ->> '$.run_id' = :run_id
LIMIT 1;
