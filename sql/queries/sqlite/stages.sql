-- Statements of the stages and their audit for SQLite.

-- name: open
INSERT INTO stage_state (run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at)
VALUES (:run_id, :stage, :attempt, 'pending', :idempotency_key, :input_hashes, :at);

-- name: move
UPDATE stage_state SET
    state = :state,
    started_at = CASE WHEN :state = 'running' THEN :at ELSE started_at END,
    ended_at = CASE WHEN :state = 'running' THEN NULL ELSE :at END,
    error_class = coalesce(:error_class, error_class),
    restricted = coalesce(:restricted, restricted),
    checkpoint_uri = coalesce(:checkpoint_uri, checkpoint_uri),
    output_sha256 = coalesce(:output_sha256, output_sha256),
    compensation = coalesce(:compensation, compensation)
WHERE run_id = :run_id AND stage = :stage AND attempt = :attempt AND state = :origin;

-- name: lock_audit
-- BEGIN IMMEDIATE has locked the database.
SELECT 1;

-- name: append_audit
INSERT INTO stage_audit (seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash)
SELECT
    value ->> '$.seq', value ->> '$.at', value ->> '$.run_id', value ->> '$.stage', value ->> '$.attempt',
    value ->> '$.kind', value ->> '$.event', value ->> '$.details', value ->> '$.earlier',
    value ->> '$.previous_hash', value ->> '$.hash'
FROM json_each(:batch)
ORDER BY key;

-- name: unfinished
SELECT
    run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at, started_at, ended_at, error_class,
    restricted, checkpoint_uri, output_sha256, compensation
FROM stage_state
WHERE state = 'running' AND run_id IN (SELECT value FROM json_each(:run_ids))
ORDER BY opened_at, stage
LIMIT :limit;
