-- Statements about quarantine cases that are the same in both databases.

-- name: due
-- A walk of the partial index: nothing but what waits, in the order in which it came.
SELECT wal_id, quarantined_version, opened_at, reason
FROM quarantine_cases
WHERE evidence_uri IS NULL
ORDER BY opened_at, wal_id
LIMIT :limit;

-- name: cases
SELECT
    c.wal_id, c.quarantined_version, c.opened_at, c.reason, c.evidence_uri, c.evidence_sha256, c.collected_at, c.state,
    c.closed_at, decision.actor AS closed_by, decision.reason AS closing_reason, decision.change_ref, record.dataset,
    record.object_uri, record.attempts, record.last_error_code
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
    record.object_uri, record.attempts, record.last_error_code
FROM quarantine_cases AS c
INNER JOIN nodd_wal_records AS record ON c.wal_id = record.wal_id
LEFT JOIN governance_log AS decision ON c.closing_entry = decision.entry_id
WHERE c.wal_id = :wal_id
ORDER BY c.quarantined_version DESC;
