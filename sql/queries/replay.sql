-- Statements of replays that are the same in both databases.

-- name: change_state
UPDATE replay_runs SET
    state = :to_state,
    state_reason = :state_reason,
    mismatches_seen = coalesce(:mismatches_seen, mismatches_seen),
    updated_at = :at,
    finished_at = :finished_at
WHERE replay_run_id = :replay_run_id AND state = :from_state
RETURNING replay_run_id;

-- name: run
SELECT * FROM replay_runs WHERE replay_run_id = :replay_run_id;

-- name: runs
SELECT * FROM replay_runs ORDER BY created_at DESC, replay_run_id LIMIT :limit;

-- name: running
SELECT replay_run_id FROM replay_runs WHERE state = 'running' ORDER BY created_at, replay_run_id;

-- name: next_batch
SELECT min(batch) FROM replay_units WHERE replay_run_id = :replay_run_id AND state = 'selected';

-- name: batch_datasets
SELECT DISTINCT dataset FROM replay_units
WHERE replay_run_id = :replay_run_id AND state = 'selected' AND batch = :batch;

-- name: account
SELECT dataset, outcome, skip_reason, count(*) AS units
FROM replay_outcomes
WHERE replay_run_id = :replay_run_id
GROUP BY dataset, outcome, skip_reason
ORDER BY dataset, outcome, skip_reason;

-- name: unfinished
-- A batch of which a unit is pending or in progress; one that waits for its retry keeps nobody waiting.
SELECT DISTINCT found.replay_run_id, found.batch, found.dataset
FROM replay_runs AS run
INNER JOIN replay_outcomes AS found ON run.replay_run_id = found.replay_run_id
WHERE run.state IN ('running', 'paused') AND found.outcome IN ('pending', 'in_progress');

-- name: recent_batches
SELECT replay_run_id, batch, max(decided_at) AS decided_at, count(admitted_version) AS admitted
FROM replay_units
WHERE decided_at > :since
GROUP BY replay_run_id, batch;

-- name: differing
-- Results of a replay that nobody permitted to differ, in any attempt that followed its admission.
SELECT unit.wal_id, unit.dataset, mismatch.attempt, mismatch.at
FROM replay_units AS unit
INNER JOIN nodd_wal_transitions AS admission
    ON unit.wal_id = admission.wal_id AND unit.admitted_version = admission.version
INNER JOIN replay_mismatches AS mismatch
    ON unit.wal_id = mismatch.wal_id AND mismatch.attempt > admission.attempts
WHERE unit.replay_run_id = :replay_run_id AND unit.state = 'admitted' AND NOT mismatch.permitted
ORDER BY unit.position, mismatch.attempt;

-- name: outcomes
SELECT
    found.position, found.batch, found.outcome, found.skip_reason, record.wal_id, record.dataset, record.status,
    record.version, record.attempts, record.last_error_code, record.event_time, record.partition_key, record.object_uri,
    record.replay_reason, record.replay_run_id, record.updated_at
FROM replay_outcomes AS found
INNER JOIN nodd_wal_records AS record ON found.wal_id = record.wal_id
WHERE found.replay_run_id = :replay_run_id AND found.position > :after
ORDER BY found.position
LIMIT :limit;
