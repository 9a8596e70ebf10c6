-- Statements that explain a run; they only read.

-- name: intents
-- What a run intended, with the run that applied the content, what it gave, and what it took.
SELECT
    intent.wal_id, intent.node, intent.step, intent.payload, intent.content_hash, intent.status, intent.started_at,
    intent.applied_at, coalesce(applied.payload -> 'context' ->> 'run_id', CAST(applied.run_id AS text)) AS applied_by,
    output.record, output.valid_to, step.seconds, step.cpu_seconds, step.rows_in, step.rows_out, step.bytes_in,
    step.bytes_out, step.energy_kwh, step.carbon_gco2e, step.measured_by, step.cost_usd
FROM etl_wal AS intent
LEFT JOIN etl_wal AS applied ON intent.content_hash = applied.content_hash AND applied.status = 'APPLIED'
LEFT JOIN node_output AS output ON intent.content_hash = output.content_hash
LEFT JOIN etl_steps AS step ON intent.wal_id = step.wal_id AND intent.status = step.status
WHERE intent.run_id = :run_id
ORDER BY intent.wal_id;

-- name: runs_beginning
-- A person asks; the tables have a handful of rows per run.
SELECT run_id FROM run_state
-- One record is no run's: it says where run-state is (run_state/choice.py).
WHERE substr(run_id, 1, length(:beginning)) = :beginning AND dataset_id <> 'kfm.run_state_store'
UNION
SELECT CAST(run_id AS text) FROM etl_wal
WHERE substr(CAST(run_id AS text), 1, length(:beginning)) = :beginning
ORDER BY run_id
LIMIT :limit;

-- name: latest_run
-- A run's record comes after its intent, so a run whose name is no UUID goes by its name.
SELECT found.run_id
FROM (
    SELECT run_id, recorded_at AS at FROM run_state WHERE dataset_id <> 'kfm.run_state_store'
    UNION ALL
    SELECT CAST(run_id AS text), started_at FROM etl_wal WHERE wal_id = (SELECT max(wal_id) FROM etl_wal)
) AS found
ORDER BY found.at DESC, found.run_id DESC
LIMIT 1;
