-- name: append
INSERT INTO etl_wal (run_id, node, step, payload, content_hash, status, started_at)
VALUES (:run_id, :node, :step, :payload, :content_hash, 'PENDING', :at)
RETURNING wal_id, run_id, node, step, payload, content_hash, status, started_at, applied_at, claimed;

-- name: unresolved_of
SELECT wal_id, run_id, node, step, payload, content_hash, status, started_at, applied_at, claimed
FROM etl_wal
WHERE node = :node AND step = :step AND run_id = :run_id AND content_hash = :content_hash
  AND status IN ('PENDING', 'FAILED')
ORDER BY wal_id
LIMIT 1;

-- name: of_run
SELECT wal_id, run_id, node, step, payload, content_hash, status, started_at, applied_at, claimed
FROM etl_wal
WHERE run_id = :run_id
ORDER BY wal_id;

-- name: unresolved
SELECT wal_id, run_id, node, step, payload, content_hash, status, started_at, applied_at, claimed
FROM etl_wal
WHERE status IN ('PENDING', 'FAILED') AND (CAST(:node AS text) IS NULL OR node = :node) AND wal_id > :after
ORDER BY wal_id
LIMIT :limit;

-- name: pending_runs
-- The condition also names FAILED, because the partial index covers both statuses and serves only its own condition.
SELECT DISTINCT run_id FROM etl_wal @indexed_by(etl_wal_unresolved)
WHERE status IN ('PENDING', 'FAILED') AND status = 'PENDING' ORDER BY run_id;

-- name: fail_run
UPDATE etl_wal
SET status = 'FAILED'
WHERE run_id = :run_id AND status = 'PENDING'
RETURNING wal_id;

-- name: applied
SELECT wal_id, run_id, node, step, payload, content_hash, status, started_at, applied_at, claimed
FROM etl_wal
WHERE content_hash = :content_hash AND status = 'APPLIED';

-- name: resolve
UPDATE etl_wal
SET status = :status, applied_at = :applied_at, claimed = :claimed
WHERE wal_id = :wal_id AND status IN ('PENDING', 'FAILED') AND status <> :status;

-- name: output
SELECT content_hash, record, lineage, valid_from, valid_to
FROM node_output
WHERE content_hash = :content_hash;

-- name: put_output
INSERT INTO node_output (content_hash, record, lineage, valid_from)
VALUES (:content_hash, :record, :lineage, :at)
RETURNING *;

-- name: end_output
-- Ends an output's validity at a time, or reopens it (null). If a worker's clock is behind, the duration is 0.
UPDATE node_output
SET valid_to = CASE WHEN valid_from > @as_time(:at) THEN valid_from ELSE @as_time(:at) END
WHERE content_hash = :content_hash AND (valid_to IS NULL) = (@as_time(:at) IS NOT NULL);

-- name: checkpoint
SELECT last_applied_hash
FROM etl_checkpoint
WHERE node = :node;

-- name: advance_checkpoint
INSERT INTO etl_checkpoint (node, last_applied_hash, updated_at)
VALUES (:node, :content_hash, :at)
ON CONFLICT (node) DO UPDATE SET last_applied_hash = excluded.last_applied_hash, updated_at = excluded.updated_at;

-- name: overtaken
SELECT 1 FROM etl_wal AS w
JOIN etl_checkpoint AS c ON c.node = w.node
JOIN etl_wal AS a ON a.content_hash = c.last_applied_hash AND a.status = 'APPLIED'
WHERE w.wal_id = :wal_id AND a.wal_id > w.wal_id AND a.content_hash <> w.content_hash;

-- name: skip_overtaken
-- The condition also names PENDING, because the partial index covers both statuses and serves only its own condition.
UPDATE etl_wal
SET status = 'SKIPPED'
WHERE status IN ('PENDING', 'FAILED') AND status = 'FAILED' AND EXISTS (
    SELECT 1 FROM etl_checkpoint AS c
    JOIN etl_wal AS a ON a.content_hash = c.last_applied_hash AND a.status = 'APPLIED'
    WHERE c.node = etl_wal.node AND a.wal_id > etl_wal.wal_id
)
RETURNING wal_id;

-- name: put_step
INSERT INTO etl_steps (
    wal_id, status, ended_at, seconds, cpu_seconds, rows_in, rows_out, bytes_in, bytes_out, energy_kwh, carbon_gco2e,
    measured_by, cost_usd, error
)
VALUES (
    :wal_id, :status, :ended_at, :seconds, :cpu_seconds, :rows_in, :rows_out, :bytes_in, :bytes_out, :energy_kwh,
    :carbon_gco2e, :measured_by, :cost_usd, :error
);

-- name: newest_outputs_of_stage
-- A stage's last applied output in each partition, newest first.
SELECT o.content_hash, o.record, o.lineage, o.valid_from, o.valid_to
FROM etl_checkpoint AS c
JOIN node_output AS o ON o.content_hash = c.last_applied_hash
WHERE substr(c.node, 1, length(:prefix)) = :prefix AND c.updated_at >= :since
ORDER BY c.updated_at DESC;

-- name: outputs_ahead
-- A stage's last output in each partition, if it is recent and the later stage has run neither after it nor recently.
SELECT
    substr(c.node, length(:prefix) + 1) AS partition_key, o.content_hash, o.record, o.lineage, o.valid_from, o.valid_to
FROM etl_checkpoint AS c
JOIN node_output AS o ON o.content_hash = c.last_applied_hash
LEFT JOIN etl_checkpoint AS later ON later.node = :later_prefix || substr(c.node, length(:prefix) + 1)
WHERE
    substr(c.node, 1, length(:prefix)) = :prefix AND c.updated_at >= :since
    AND (later.node IS NULL OR (later.updated_at < c.updated_at AND later.updated_at < :before))
ORDER BY c.node;

-- name: outputs_of
-- Every output that a node has applied, in the order of its intents.
SELECT o.content_hash, o.record, o.lineage, o.valid_from, o.valid_to
FROM etl_wal AS w
JOIN node_output AS o ON o.content_hash = w.content_hash
WHERE w.node = :node AND w.status = 'APPLIED'
ORDER BY w.wal_id;
