-- Batch statements about quarantine cases for PostgreSQL: a batch is one JSON parameter, read by jsonb_to_recordset.

-- name: histories
SELECT wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
FROM nodd_wal_transitions
WHERE wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
ORDER BY wal_id, version;

-- name: messages
SELECT message_id, queue, receive_count, first_received_at, landing_sha256
FROM nodd_wal_deliveries
WHERE message_id IN (SELECT jsonb_array_elements_text(CAST(:message_ids AS jsonb)));

-- name: attach
WITH bundle AS (
    SELECT wanted.wal_id, wanted.version, wanted.uri, wanted.sha256
    FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS wanted (wal_id text, version integer, uri text, sha256 text)
    INNER JOIN quarantine_cases AS c ON wanted.wal_id = c.wal_id AND wanted.version = c.quarantined_version
    WHERE c.evidence_uri IS NULL
    -- Two collectors that overlap cannot deadlock.
    ORDER BY c.wal_id
    FOR UPDATE OF c
)

UPDATE quarantine_cases AS c SET evidence_uri = bundle.uri, evidence_sha256 = bundle.sha256, collected_at = :at
FROM bundle
WHERE c.wal_id = bundle.wal_id AND c.quarantined_version = bundle.version AND c.evidence_uri IS NULL
RETURNING c.wal_id;

-- name: lock_open
SELECT c.wal_id, c.quarantined_version, record.dataset
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS wanted (wal_id text, version integer)
INNER JOIN quarantine_cases AS c ON wanted.wal_id = c.wal_id AND wanted.version = c.quarantined_version
INNER JOIN nodd_wal_records AS record ON c.wal_id = record.wal_id
WHERE c.state = 'open'
ORDER BY c.wal_id
-- The record, too: a release begins there, and two orders of locking would deadlock.
FOR UPDATE OF record, c;

-- name: discard
-- The decision on record is the newest one on the unit, made in this transaction.
UPDATE quarantine_cases AS c SET
    state = 'discarded',
    closed_at = :at,
    closing_entry = (
        SELECT max(decision.entry_id) FROM governance_log AS decision
        WHERE decision.wal_id = c.wal_id AND decision.action = 'discard'
    )
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS wanted (wal_id text, version integer)
WHERE c.wal_id = wanted.wal_id AND c.quarantined_version = wanted.version AND c.state = 'open'
RETURNING c.wal_id;
