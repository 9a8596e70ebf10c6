-- Statements of the dead-letter tooling.

-- name: known_units
-- requeued_with is the error that the unit had when a drain last requeued it.
SELECT
    record.wal_id, record.dataset, record.status, record.attempts,
    record.last_error_code AS error_code,
    (
        SELECT entry.fields ->> 'last_error_code'
        FROM nodd_wal_transitions AS entry
        WHERE entry.wal_id = record.wal_id AND entry.to_status = 'pending' AND entry.reason = :reason
        ORDER BY entry.version DESC
        LIMIT 1
    ) AS requeued_with,
    EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = record.wal_id) AS is_superseded
FROM nodd_wal_records AS record
WHERE record.wal_id IN (@each(:wal_ids));
