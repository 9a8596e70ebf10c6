-- Statements of the clock's readings.

-- name: record
INSERT INTO clock_readings (clock_id, at, source, offset_seconds, uncertainty_seconds, state)
VALUES (:clock_id, :at, :source, :offset_seconds, :uncertainty_seconds, :state);

-- name: recent
SELECT at, source, offset_seconds, uncertainty_seconds, state
FROM clock_readings
WHERE clock_id = :clock_id AND at >= :since
ORDER BY reading_id DESC
LIMIT :limit;
