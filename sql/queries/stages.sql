-- Statements of the stages and their audit.

-- name: of_run
SELECT
    run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at, started_at, ended_at, error_class,
    restricted, checkpoint_uri, output_sha256, compensation
FROM stage_state
WHERE run_id = :run_id AND (CAST(:stage AS text) IS NULL OR stage = :stage)
ORDER BY opened_at, stage, attempt;

-- name: unfinished_runs
-- The condition also names pending, because the partial index covers both states and serves only its own condition.
SELECT DISTINCT run_id FROM stage_state @indexed_by(stage_state_unfinished)
WHERE state IN ('pending', 'running') AND state = 'running' ORDER BY run_id;

-- name: begun_runs
-- Runs that have claimed their units, because the stage that claims units is the first to succeed in a chain.
SELECT DISTINCT run_id FROM stage_state WHERE run_id IN (@each(:runs)) AND state = 'succeeded';

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
-- Outputs of a stage, newest first.
SELECT run_id, checkpoint_uri, output_sha256, ended_at
FROM stage_state
WHERE stage = :stage AND state = 'succeeded' AND checkpoint_uri IS NOT NULL AND opened_at >= :since
ORDER BY opened_at DESC;

-- name: replays_since
SELECT created_at FROM replay_runs WHERE created_at >= :since AND mode <> 'backfill';

-- name: open
INSERT INTO stage_state (run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at)
VALUES (
    :run_id, :stage, :attempt, 'pending', :idempotency_key, @as_json(:input_hashes), @as_time(:at)
)
RETURNING *;

-- name: move
UPDATE stage_state SET
    state = :state,
    started_at = CASE WHEN :state = 'running' THEN @as_time(:at) ELSE started_at END,
    ended_at = CASE WHEN :state = 'running' THEN NULL ELSE @as_time(:at) END,
    error_class = coalesce(CAST(:error_class AS text), error_class),
    restricted = coalesce(@as_json(:restricted), restricted),
    checkpoint_uri = coalesce(CAST(:checkpoint_uri AS text), checkpoint_uri),
    output_sha256 = coalesce(CAST(:output_sha256 AS text), output_sha256),
    compensation = coalesce(@as_json(:compensation), compensation)
WHERE run_id = :run_id AND stage = :stage AND attempt = :attempt AND state = :origin
RETURNING *;

-- name: append_audit
INSERT INTO stage_audit (seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash)
SELECT seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash
FROM @batch(:batch, line,
    seq bigint, at time, run_id text, stage text, attempt integer, kind text, event text, details text,
    earlier text, previous_hash text, hash text
)
ORDER BY seq;

-- name: unfinished
SELECT
    run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at, started_at, ended_at, error_class,
    restricted, checkpoint_uri, output_sha256, compensation
FROM stage_state
WHERE state = 'running' AND run_id IN (@each(:run_ids))
ORDER BY opened_at, stage
LIMIT :limit;
