-- Statements of the console; they only read, and each reads at most as many rows as its limit.

-- name: settled
-- Counts of the stages that gave a dataset's units their final status, newest first.
SELECT stage.ended_at, settled.validation_summary
FROM stage_state AS stage
INNER JOIN run_state AS settled ON stage.run_id = settled.run_id AND stage.stage = settled.dataset_id
WHERE stage.opened_at >= :since AND stage.stage = :stage AND stage.state = 'succeeded'
ORDER BY stage.opened_at DESC
LIMIT :limit;

-- name: newest_successes
-- Times of discovery and success of the newest live units, without replayed units.
SELECT unit.created_at, unit.updated_at
FROM (
    SELECT created_at, updated_at, lane, replay_reason FROM nodd_wal_records
    WHERE status = 'succeeded' AND dataset = :dataset
    ORDER BY event_time DESC, wal_id DESC
    LIMIT :limit
) AS unit
WHERE unit.lane = 'live' AND coalesce(unit.replay_reason, 'retry') = 'retry';
