-- Statements of the stages and their audit that are the same in both databases.

-- name: newest
SELECT
    run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at, started_at, ended_at, error_class,
    restricted, checkpoint_uri, output_sha256, compensation
FROM stage_state
WHERE run_id = :run_id AND stage = :stage
ORDER BY attempt DESC
LIMIT 1;

-- name: of_run
SELECT
    run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at, started_at, ended_at, error_class,
    restricted, checkpoint_uri, output_sha256, compensation
FROM stage_state
WHERE run_id = :run_id
ORDER BY opened_at, stage, attempt;

-- name: first_opened
SELECT opened_at FROM stage_state WHERE run_id = :run_id AND stage = :stage AND attempt = 1;

-- name: unfinished_runs
SELECT DISTINCT run_id FROM stage_state WHERE state = 'running';

-- name: audit_head
SELECT seq, hash FROM stage_audit ORDER BY seq DESC LIMIT 1;

-- name: audit_after
SELECT seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash
FROM stage_audit
WHERE seq > :seq
ORDER BY seq
LIMIT :limit;

-- name: audit_of_stage
SELECT seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash
FROM stage_audit
WHERE run_id = :run_id AND stage = :stage
ORDER BY seq;

-- name: last_told
SELECT max(at) AS at FROM stage_audit WHERE run_id = :run_id AND stage = :stage AND attempt = :attempt;

-- name: opened_since
SELECT
    run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at, started_at, ended_at, error_class,
    restricted, checkpoint_uri, output_sha256, compensation
FROM stage_state
WHERE opened_at >= :since
ORDER BY opened_at, run_id, stage, attempt;

-- name: audit_since
SELECT seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash
FROM stage_audit
WHERE at >= :since
ORDER BY at, seq;

-- name: newest_outputs
-- What a stage made, the newest first.
SELECT run_id, checkpoint_uri, output_sha256, ended_at
FROM stage_state
WHERE stage = :stage AND state = 'succeeded' AND checkpoint_uri IS NOT NULL AND opened_at >= :since
ORDER BY opened_at DESC;

-- name: replays_since
SELECT count(*) AS replays FROM replay_runs WHERE created_at >= :since;
