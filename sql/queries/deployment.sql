-- Statements about what holds of the deployment as a whole.

-- name: values
SELECT value FROM deployment WHERE fact = :fact ORDER BY value;

-- name: add
-- Two that add one value at once: the first stays.
INSERT INTO deployment (fact, value, at, actor, reason) VALUES (:fact, :value, :at, :actor, :reason)
ON CONFLICT (fact, value) DO NOTHING;

-- name: earliest_known_day
-- Of what was taken in before there was a first day, or was asked for.
SELECT min(known.day)
FROM (
    SELECT min(partition_key) AS day FROM nodd_wal_records
    UNION ALL
    SELECT min(day) AS day FROM backfill_days
) AS known;
