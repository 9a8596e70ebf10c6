-- Facts that gates are evaluated with, of the ledger.

-- name: partition_products
-- Objects that a partition has, in work or done, by UTC hour and by the groups of their keys; one that was rewritten
-- counts once.
SELECT
    @utc_hour(time_range_start) AS hour, extension,
    count(DISTINCT object_uri) AS objects
FROM nodd_wal_records
WHERE status IN ('pending', 'in_progress', 'succeeded') AND dataset = :dataset AND partition_key = :partition
GROUP BY 1, extension;
