-- Facts of the ledger for evaluating gates.

-- name: partition_products
-- A partition's objects that are pending, in progress or succeeded, by UTC hour and extension fields. Versions of an
-- object count once, although each version has other peer sizes.
SELECT
    @utc_hour(time_range_start) AS hour, @without(extension, 'peer_sizes') AS extension,
    count(DISTINCT object_uri) AS objects
FROM nodd_wal_records
WHERE status IN ('pending', 'in_progress', 'succeeded') AND dataset = :dataset AND partition_key = :partition
GROUP BY 1, 2;
