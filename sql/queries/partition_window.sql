-- Statements about the days that the deployment has partitions of.

-- name: first_day
SELECT min(first_day) FROM partition_first_days;

-- name: earliest_known
-- What an earlier release has taken in, or was asked for.
SELECT min(known.day)
FROM (
    SELECT min(partition_key) AS day FROM nodd_wal_records
    UNION ALL
    SELECT min(day) AS day FROM backfill_days
) AS known;

-- name: begin
-- Two that begin at once: the earlier day counts.
INSERT INTO partition_first_days (first_day, decided_at, actor, reason)
VALUES (:first_day, :at, :actor, :reason)
ON CONFLICT (first_day) DO NOTHING;
