-- Facts of the ledger for evaluating gates.

-- name: partition_products
-- A partition's objects that are pending, in progress or succeeded, by UTC hour and by the groups of their keys; a
-- rewritten object counts once.
SELECT
    @utc_hour(time_range_start) AS hour, extension,
    count(DISTINCT object_uri) AS objects
FROM nodd_wal_records
WHERE status IN ('pending', 'in_progress', 'succeeded') AND dataset = :dataset AND partition_key = :partition
GROUP BY 1, extension;
