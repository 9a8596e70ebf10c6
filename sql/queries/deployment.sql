-- Statements about facts of the deployment as a whole.

-- name: values
SELECT value FROM deployment WHERE fact = :fact ORDER BY value;

-- name: add
-- If two processes add the same value, the first is kept.
INSERT INTO deployment (fact, value, at, actor, reason) VALUES (:fact, :value, :at, :actor, :reason)
ON CONFLICT (fact, value) DO NOTHING;

-- name: earliest_known_day
-- Earliest day of all units and backfills, for a deployment that has not stored its first day yet.
SELECT min(known.day)
FROM (
    SELECT min(partition_key) AS day FROM nodd_wal_records
    UNION ALL
    SELECT min(day) AS day FROM backfill_days
) AS known;
