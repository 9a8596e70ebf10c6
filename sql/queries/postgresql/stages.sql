-- Statements of the stages and their audit for PostgreSQL.

-- name: open
INSERT INTO stage_state (run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at)
VALUES (
    :run_id, :stage, :attempt, 'pending', :idempotency_key, CAST(:input_hashes AS jsonb), CAST(:at AS timestamptz)
);

-- name: move
UPDATE stage_state SET
    state = :state,
    started_at = CASE WHEN :state = 'running' THEN CAST(:at AS timestamptz) ELSE started_at END,
    ended_at = CASE WHEN :state = 'running' THEN NULL ELSE CAST(:at AS timestamptz) END,
    error_class = coalesce(CAST(:error_class AS text), error_class),
    restricted = coalesce(CAST(:restricted AS jsonb), restricted),
    checkpoint_uri = coalesce(CAST(:checkpoint_uri AS text), checkpoint_uri),
    output_sha256 = coalesce(CAST(:output_sha256 AS text), output_sha256),
    compensation = coalesce(CAST(:compensation AS jsonb), compensation)
WHERE run_id = :run_id AND stage = :stage AND attempt = :attempt AND state = :origin;

-- name: lock_audit
-- One chain, so one writer at a time; its lock ends with its transaction.
SELECT pg_advisory_xact_lock(hashtextextended('kfm_dagster.stage_audit', 0));

-- name: append_audit
INSERT INTO stage_audit (seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash)
SELECT seq, at, run_id, stage, attempt, kind, event, details, earlier, previous_hash, hash
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS line (
    seq bigint, at timestamptz, run_id text, stage text, attempt integer, kind text, event text, details text,
    earlier text, previous_hash text, hash text
)
ORDER BY seq;

-- name: unfinished
SELECT
    run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at, started_at, ended_at, error_class,
    restricted, checkpoint_uri, output_sha256, compensation
FROM stage_state
WHERE state = 'running' AND run_id IN (SELECT jsonb_array_elements_text(CAST(:run_ids AS jsonb)))
ORDER BY opened_at, stage
LIMIT :limit;
