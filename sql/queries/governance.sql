-- Statements of the governance log and of kill switches.

-- name: entries
SELECT
    entry_id, at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details,
    proposal_id, approved_by
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
    at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details,
    proposal_id
)
SELECT
    @as_time(:at), actor, action, dataset, wal_id, record_version, from_status, to_status, reason,
    change_ref, details, proposal_id
FROM @batch(:batch, entry,
    actor text, action text, dataset text, wal_id text, record_version integer, from_status text, to_status text,
    reason text, change_ref text, details json, proposal_id bigint
)
RETURNING entry_id;

-- name: of_run
SELECT entry_id FROM governance_log
WHERE action = :action AND dataset = :dataset AND details ->> 'run_id' = :run_id
LIMIT 1;

-- name: propose_units
INSERT INTO override_units (proposal_id, wal_id, version, action)
SELECT :proposal_id, wal_id, version, action
FROM @batch(:batch, unit, wal_id text, version integer, action text)
@in_order(wal_id);

-- name: proposed_units
SELECT wal_id, version, action FROM override_units WHERE proposal_id = :proposal_id ORDER BY wal_id;

-- name: proposals
-- One proposal, or all undecided proposals, newest first.
SELECT
    p.entry_id, p.at, p.actor, p.reason, p.change_ref, p.details, decision.action AS decision,
    decision.actor AS decided_by, decision.at AS decided_at
FROM governance_log AS p
LEFT JOIN governance_log AS decision ON p.entry_id = decision.proposal_id AND decision.record_version IS NULL
WHERE
    p.action = 'override_proposed' AND (p.entry_id = :proposal_id OR (:proposal_id IS NULL AND decision.entry_id IS NULL))
ORDER BY p.entry_id DESC;

-- name: unapproved
-- The units whose versions have no approval for this actor and action.
SELECT unit.wal_id
FROM @batch(:batch, unit, wal_id text, version integer)
WHERE NOT EXISTS (
    SELECT 1 FROM override_units AS u
    INNER JOIN governance_log AS p ON u.proposal_id = p.entry_id AND p.actor = :actor
    INNER JOIN governance_log AS a
        ON u.proposal_id = a.proposal_id AND a.record_version IS NULL AND a.action = 'override_approved'
    WHERE u.wal_id = unit.wal_id AND u.version = unit.version AND u.action = :action
)
ORDER BY unit.wal_id;
