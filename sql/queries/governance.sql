-- Statements of the governance log and of kill switches.

-- name: entries
SELECT
    entry_id, at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details
FROM governance_log
WHERE
    (:action IS NULL OR action = :action) AND (:dataset IS NULL OR dataset = :dataset)
    AND (:wal_id IS NULL OR wal_id = :wal_id)
ORDER BY entry_id DESC
LIMIT :limit;

-- name: engaged
SELECT switch_id, dataset, engaged_at, engaged_by, reason, change_ref, expires_at
FROM kill_switches
WHERE released_at IS NULL AND (expires_at IS NULL OR expires_at > :at)
ORDER BY dataset;

-- name: engage
INSERT INTO kill_switches (dataset, engaged_at, engaged_by, reason, change_ref, expires_at)
VALUES (:dataset, :at, :actor, :reason, :change_ref, :expires_at);

-- name: disengage
UPDATE kill_switches SET released_at = :at, released_by = :actor, release_reason = :reason
WHERE dataset = :dataset AND released_at IS NULL
RETURNING switch_id;

-- name: close_expired
UPDATE kill_switches SET released_at = expires_at, released_by = 'expiry', release_reason = 'expired'
WHERE dataset = :dataset AND released_at IS NULL AND expires_at <= :at;

-- name: record
INSERT INTO governance_log (
    at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details
)
SELECT
    @as_time(:at), actor, action, dataset, wal_id, record_version, from_status, to_status, reason,
    change_ref, details
FROM @batch(:batch, entry,
    actor text, action text, dataset text, wal_id text, record_version integer, from_status text, to_status text,
    reason text, change_ref text, details json
);

-- name: of_run
SELECT entry_id FROM governance_log
WHERE action = :action AND dataset = :dataset AND details ->> 'run_id' = :run_id
LIMIT 1;
