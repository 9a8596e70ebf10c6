-- Facts of the ledger for evaluating gates.

-- name: partition_products
-- A partition's objects that are pending, in progress or succeeded, by UTC hour and extension fields; versions of an
-- object with the same extension fields count once.
SELECT
    @utc_hour(time_range_start) AS hour, extension,
    count(DISTINCT object_uri) AS objects
FROM nodd_wal_records
WHERE status IN ('pending', 'in_progress', 'succeeded') AND dataset = :dataset AND partition_key = :partition
GROUP BY 1, extension;
