-- Statements that search units and add failures up; they only read, and none reads more rows than its limit.

-- name: page_of_status
-- Of the newest units of one status of one dataset, those that are meant, and the last one that was examined.
WITH examined AS (
    SELECT * FROM kfm_units
    WHERE
        status = :status AND dataset = :dataset AND (event_time, wal_id) < (:before_time, :before_id)
        AND event_time >= :since
    ORDER BY event_time DESC, wal_id DESC
    LIMIT :limit
),

compared AS (
    SELECT examined.*, @position(examined.object_uri, :text) > 0 AS is_meant FROM examined
)

SELECT * FROM compared
WHERE is_meant OR wal_id = (SELECT last.wal_id FROM examined AS last ORDER BY last.event_time, last.wal_id LIMIT 1)
ORDER BY event_time DESC, wal_id DESC;

-- name: page_of_failure
-- The same of the units of one dataset that failed for one reason.
WITH examined AS (
    SELECT * FROM kfm_units
    WHERE
        status IN ('failed', 'quarantined') AND last_error_code = :code AND dataset = :dataset
        AND (event_time, wal_id) < (:before_time, :before_id) AND event_time >= :since
    ORDER BY event_time DESC, wal_id DESC
    LIMIT :limit
),

compared AS (
    SELECT
        examined.*,
        @position(examined.object_uri, :text) > 0 AND :status IN (examined.status, '')
        AND :operator IN (examined.operator, '') AS is_meant
    FROM examined
)

SELECT * FROM compared
WHERE is_meant OR wal_id = (SELECT last.wal_id FROM examined AS last ORDER BY last.event_time, last.wal_id LIMIT 1)
ORDER BY event_time DESC, wal_id DESC;

-- name: count_of_status
-- How many of so many units are meant.
SELECT count(*) AS examined, count(CASE WHEN @position(unit.object_uri, :text) > 0 THEN 1 END) AS units
FROM (
    SELECT object_uri FROM kfm_units
    WHERE
        status = :status AND dataset = :dataset AND (event_time, wal_id) < (:before_time, :before_id)
        AND event_time >= :since
    LIMIT :limit
) AS unit;

-- name: count_of_failure
-- The same of the units of one dataset that failed for one reason.
SELECT
    count(*) AS examined,
    count(CASE
        WHEN
            @position(unit.object_uri, :text) > 0 AND :status IN (unit.status, '')
            AND :operator IN (unit.operator, '')
            THEN 1
    END) AS units
FROM (
    SELECT object_uri, status, operator FROM kfm_units
    WHERE
        status IN ('failed', 'quarantined') AND last_error_code = :code AND dataset = :dataset
        AND (event_time, wal_id) < (:before_time, :before_id) AND event_time >= :since
    LIMIT :limit
) AS unit;

-- name: next_failure
-- The reason and dataset that come after these, of units that failed.
SELECT last_error_code, dataset FROM nodd_wal_records @indexed_by(nodd_wal_records_failing)
WHERE status IN ('failed', 'quarantined') AND (last_error_code, dataset) > (:code, :dataset)
ORDER BY last_error_code, dataset
LIMIT 1;

-- name: failure_groups
-- The newest units of one dataset that failed for one reason, added up by the operator that they left the chain at.
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
