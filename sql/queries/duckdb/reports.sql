-- Queries of the reports over Arrow tables that a report registers.
-- attempts(run_id, stage, attempt, state, seconds, input_hashes): seconds from start to end, null before the end.

-- name: stage_states
-- By the newest attempt, which is the stage's result in its run.
SELECT stage, state, count(*) AS runs
FROM (SELECT run_id, stage, arg_max(state, attempt) AS state FROM attempts GROUP BY run_id, stage)
GROUP BY stage, state
ORDER BY stage, state;

-- name: latency
-- By linear interpolation; null without an attempt that succeeded.
SELECT quantile_cont(seconds, 0.5) AS p50, quantile_cont(seconds, 0.95) AS p95
FROM attempts
WHERE state = 'succeeded';

-- name: conflicts
-- Attempts with other inputs than the stage's attempt before; all attempts in a run share the idempotency key.
SELECT count(*) AS conflicts
FROM (
    SELECT input_hashes, lag(input_hashes) OVER (PARTITION BY run_id, stage ORDER BY attempt) AS before FROM attempts
)
WHERE input_hashes <> before;
