-- Statements that search units and count failures; they only read, and each reads at most as many rows as its limit.

-- name: page
-- Examines the newest units of an index range (a status, a status on a day, or an error code); returns the matches and
-- the last examined unit.
WITH examined AS (
    SELECT * FROM kfm_units
    WHERE
        :range = 'status' AND status = :status AND dataset = :dataset
        AND (event_time, wal_id) < (:before_time, :before_id) AND event_time >= :since
    UNION ALL
    SELECT * FROM kfm_units
    WHERE
        :range = 'partition' AND status = :status AND dataset = :dataset AND partition_key = :partition
        AND (event_time, wal_id) < (:before_time, :before_id) AND event_time >= :since
    UNION ALL
    SELECT * FROM kfm_units
    WHERE
        :range = 'failure' AND status IN ('failed', 'quarantined') AND last_error_code = :code AND dataset = :dataset
        AND (event_time, wal_id) < (:before_time, :before_id) AND event_time >= :since
    ORDER BY event_time DESC, wal_id DESC
    LIMIT :limit
),

compared AS (
    SELECT
        examined.wal_id, examined.event_time, examined.operator,
        (@position(lower(examined.object_uri), :text) > 0 OR @position(lower(examined.stac_item_id), :text) > 0)
        AND :wanted_status IN (examined.status, '')
        AND :wanted_code IN (examined.last_error_code, '') AND :operator IN (examined.operator, '')
        AND :check_status IN (examined.integrity_status, examined.metadata_status, '') AS is_match
    FROM examined
)

SELECT record.*, compared.operator, compared.is_match
FROM compared
INNER JOIN nodd_wal_records AS record ON compared.wal_id = record.wal_id
WHERE
    compared.is_match
    OR compared.wal_id = (SELECT last.wal_id FROM examined AS last ORDER BY last.event_time, last.wal_id LIMIT 1)
ORDER BY compared.event_time DESC, compared.wal_id DESC;

-- name: count
-- Number of matches among the first units of an index range.
SELECT
    count(*) AS examined,
    count(CASE
        WHEN
            (@position(lower(unit.object_uri), :text) > 0 OR @position(lower(unit.stac_item_id), :text) > 0)
            AND :wanted_status IN (unit.status, '')
            AND :wanted_code IN (unit.last_error_code, '') AND :operator IN (unit.operator, '')
            AND :check_status IN (unit.integrity_status, unit.metadata_status, '')
            THEN 1
    END) AS units
FROM (
    SELECT * FROM kfm_units
    WHERE
        :range = 'status' AND status = :status AND dataset = :dataset
        AND (event_time, wal_id) < (:before_time, :before_id) AND event_time >= :since
    UNION ALL
    SELECT * FROM kfm_units
    WHERE
        :range = 'partition' AND status = :status AND dataset = :dataset AND partition_key = :partition
        AND (event_time, wal_id) < (:before_time, :before_id) AND event_time >= :since
    UNION ALL
    SELECT * FROM kfm_units
    WHERE
        :range = 'failure' AND status IN ('failed', 'quarantined') AND last_error_code = :code AND dataset = :dataset
        AND (event_time, wal_id) < (:before_time, :before_id) AND event_time >= :since
    LIMIT :limit
) AS unit;

-- name: next_failure
-- The next pair of error code and dataset of failed units.
SELECT last_error_code, dataset FROM nodd_wal_records @indexed_by(nodd_wal_records_failing)
WHERE status IN ('failed', 'quarantined') AND (last_error_code, dataset) > (:code, :dataset)
ORDER BY last_error_code, dataset
LIMIT 1;

-- name: failure_groups
-- Counts a dataset's newest units that failed with a code, by the operator at which they left the chain.
SELECT
    unit.operator, count(*) AS units, min(unit.updated_at) AS first_at, max(unit.updated_at) AS last_at
FROM (
    SELECT operator, updated_at FROM kfm_units
    WHERE
        status IN ('failed', 'quarantined') AND last_error_code = :code AND dataset = :dataset
        AND event_time >= :since
    ORDER BY event_time DESC, wal_id DESC
    LIMIT :limit
) AS unit
GROUP BY unit.operator
ORDER BY unit.operator;
