-- Batch statements about quarantine cases for SQLite: a batch is one JSON parameter, read by json_each.

-- name: histories
SELECT wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
FROM nodd_wal_transitions
WHERE wal_id IN (SELECT value FROM json_each(:wal_ids))
ORDER BY wal_id, version;

-- name: messages
SELECT message_id, queue, receive_count, first_received_at, landing_sha256
FROM nodd_wal_deliveries
WHERE message_id IN (SELECT value FROM json_each(:message_ids));

-- name: attach
UPDATE quarantine_cases SET
    evidence_uri = bundle.value ->> '$.uri', evidence_sha256 = bundle.value ->> '$.sha256', collected_at = :at
FROM json_each(:batch) AS bundle
WHERE
    wal_id = bundle.value ->> '$.wal_id' AND quarantined_version = bundle.value ->> '$.version' AND evidence_uri IS NULL
RETURNING wal_id;

-- name: lock_open
SELECT c.wal_id, c.quarantined_version, record.dataset
FROM json_each(:batch) AS wanted
INNER JOIN quarantine_cases AS c
    ON c.wal_id = wanted.value ->> '$.wal_id' AND c.quarantined_version = wanted.value ->> '$.version'
INNER JOIN nodd_wal_records AS record ON c.wal_id = record.wal_id
WHERE c.state = 'open'
ORDER BY c.wal_id;

-- name: discard
-- The decision on record is the newest one on the unit, made in this transaction.
UPDATE quarantine_cases SET
    state = 'discarded',
    closed_at = :at,
    closing_entry = (
        SELECT max(decision.entry_id) FROM governance_log AS decision
        WHERE decision.wal_id = quarantine_cases.wal_id AND decision.action = 'discard'
    )
FROM json_each(:batch) AS wanted
WHERE
    wal_id = wanted.value ->> '$.wal_id' AND quarantined_version = wanted.value ->> '$.version' AND state = 'open'
RETURNING wal_id;
