-- Statements about quarantine cases.

-- name: due
-- Reads the partial index, which has only cases without evidence, oldest first.
SELECT wal_id, quarantined_version AS version, opened_at, reason
FROM quarantine_cases
WHERE evidence_uri IS NULL
ORDER BY opened_at, wal_id
LIMIT :limit;

-- name: cases
SELECT
    c.wal_id, c.quarantined_version, c.opened_at, c.reason, c.evidence_uri, c.evidence_sha256, c.collected_at, c.state,
    c.closed_at, decision.actor AS closed_by, decision.reason AS closing_reason, decision.change_ref, record.dataset,
    record.object_uri, record.attempts, record.last_error_code AS error_code
FROM quarantine_cases AS c
INNER JOIN nodd_wal_records AS record ON c.wal_id = record.wal_id
LEFT JOIN governance_log AS decision ON c.closing_entry = decision.entry_id
WHERE
    c.state = :state AND (:dataset IS NULL OR record.dataset = :dataset) AND (:reason IS NULL OR c.reason = :reason)
ORDER BY c.opened_at DESC, c.wal_id DESC
LIMIT :limit;

-- name: cases_of
SELECT
    c.wal_id, c.quarantined_version, c.opened_at, c.reason, c.evidence_uri, c.evidence_sha256, c.collected_at, c.state,
    c.closed_at, decision.actor AS closed_by, decision.reason AS closing_reason, decision.change_ref, record.dataset,
    record.object_uri, record.attempts, record.last_error_code AS error_code
FROM quarantine_cases AS c
INNER JOIN nodd_wal_records AS record ON c.wal_id = record.wal_id
LEFT JOIN governance_log AS decision ON c.closing_entry = decision.entry_id
WHERE c.wal_id = :wal_id
ORDER BY c.quarantined_version DESC;

-- name: discardable
-- The named units that are quarantined and have an open case of their version.
SELECT record.wal_id, c.quarantined_version, record.dataset, record.last_error_code
FROM nodd_wal_records AS record
INNER JOIN quarantine_cases AS c ON record.wal_id = c.wal_id AND record.version = c.quarantined_version
WHERE record.wal_id IN (@each(:wal_ids)) AND record.status = 'quarantined' AND c.state = 'open'
ORDER BY record.wal_id;

-- name: messages
SELECT message_id, queue, receive_count, first_received_at, landing_sha256 AS landing
FROM nodd_wal_deliveries
WHERE message_id IN (@each(:message_ids));

-- name: attach
-- sqlite: the transaction has locked the database.
UPDATE quarantine_cases SET
    evidence_uri = bundle.value ->> '$.uri', evidence_sha256 = bundle.value ->> '$.sha256', collected_at = :at
FROM json_each(:batch) AS bundle
WHERE
    wal_id = bundle.value ->> '$.wal_id' AND quarantined_version = bundle.value ->> '$.version' AND evidence_uri IS NULL
RETURNING wal_id;

-- name: attach
-- postgresql: rows are locked in order first.
WITH bundle AS (
    SELECT wanted.wal_id, wanted.version, wanted.uri, wanted.sha256
    FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS wanted (wal_id text, version integer, uri text, sha256 text)
    INNER JOIN quarantine_cases AS c ON wanted.wal_id = c.wal_id AND wanted.version = c.quarantined_version
    WHERE c.evidence_uri IS NULL
    -- In order, so that two collectors with common cases cannot deadlock.
    ORDER BY c.wal_id
    FOR UPDATE OF c
)

UPDATE quarantine_cases AS c SET evidence_uri = bundle.uri, evidence_sha256 = bundle.sha256, collected_at = :at
FROM bundle
WHERE c.wal_id = bundle.wal_id AND c.quarantined_version = bundle.version AND c.evidence_uri IS NULL
RETURNING c.wal_id;

-- name: lock_open
SELECT c.wal_id, c.quarantined_version, record.dataset
FROM @batch(:batch, wanted, wal_id text, version integer)
INNER JOIN quarantine_cases AS c ON wanted.wal_id = c.wal_id AND wanted.version = c.quarantined_version
INNER JOIN nodd_wal_records AS record ON c.wal_id = record.wal_id
WHERE c.state = 'open'
ORDER BY c.wal_id
-- The record is locked, too, because a release locks it first, and two orders of locking would deadlock.
@lock(FOR UPDATE OF record, c);

-- name: discard
-- The closing entry is the newest decision on the unit, made in this transaction.
UPDATE quarantine_cases AS c SET
    state = 'discarded',
    closed_at = :at,
    closing_entry = (
        SELECT max(decision.entry_id) FROM governance_log AS decision
        WHERE decision.wal_id = c.wal_id AND decision.action = 'discard'
    )
FROM @batch(:batch, wanted, wal_id text, version integer)
WHERE c.wal_id = wanted.wal_id AND c.quarantined_version = wanted.version AND c.state = 'open'
RETURNING @returned(c.wal_id);
