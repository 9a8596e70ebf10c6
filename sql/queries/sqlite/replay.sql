-- Statements of replays for SQLite: a batch is one JSON parameter, read by json_each.

-- name: lock
-- One writer at a time: the transaction holds the lock already.
SELECT 1;

-- name: select_units
-- Each (status, dataset) is one range of nodd_wal_records_by_selection, read no further than the limit. A filter that is
-- not given costs no look at the record itself.
WITH taken AS (
    SELECT candidate_of_group.rowid AS id
    FROM json_each(:groups) AS wanted
    CROSS JOIN nodd_wal_records AS candidate_of_group ON candidate_of_group.rowid IN (
        SELECT candidate.rowid FROM nodd_wal_records AS candidate
        WHERE
            candidate.status = wanted.value ->> '$.status' AND candidate.dataset = wanted.value ->> '$.dataset'
            AND candidate.event_time >= :event_start AND candidate.event_time < :event_end
            AND (:created_after IS NULL OR candidate.created_at >= :created_after)
            AND (:created_before IS NULL OR candidate.created_at < :created_before)
            AND (:attempts_max IS NULL OR candidate.attempts <= :attempts_max)
            AND (:error_codes IS NULL OR candidate.last_error_code IN (SELECT value FROM json_each(:error_codes)))
        ORDER BY candidate.event_time, candidate.wal_id
        LIMIT :limit
    )
    ORDER BY candidate_of_group.event_time, candidate_of_group.wal_id
    LIMIT :limit
)

SELECT
    record.wal_id, record.version, record.status, record.dataset, record.partition_key, record.event_time,
    record.attempts, record.last_error_code, record.object_uri,
    EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = record.wal_id) AS is_superseded,
    (
        SELECT result.code_version FROM nodd_wal_outcomes AS result
        WHERE result.wal_id = record.wal_id
        ORDER BY result.attempt DESC
        LIMIT 1
    ) AS made_by
FROM taken
CROSS JOIN nodd_wal_records AS record ON taken.id = record.rowid
ORDER BY record.event_time, record.wal_id;

-- name: count_by_status
-- Each (status, dataset) is one range of nodd_wal_records_by_selection.
SELECT record.status, count(*) AS units
FROM json_each(:groups) AS wanted
CROSS JOIN nodd_wal_records AS record ON
    record.status = wanted.value ->> '$.status' AND record.dataset = wanted.value ->> '$.dataset'
WHERE record.event_time >= :event_start AND record.event_time < :event_end
GROUP BY record.status;

-- name: select_named
SELECT
    record.wal_id, record.version, record.status, record.dataset, record.partition_key, record.event_time,
    record.attempts, record.last_error_code, record.object_uri,
    EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = record.wal_id) AS is_superseded,
    (
        SELECT result.code_version FROM nodd_wal_outcomes AS result
        WHERE result.wal_id = record.wal_id
        ORDER BY result.attempt DESC
        LIMIT 1
    ) AS made_by
FROM nodd_wal_records AS record
WHERE
    record.wal_id IN (SELECT value FROM json_each(:wal_ids))
    AND record.status || '' IN (SELECT value FROM json_each(:statuses))
    AND record.dataset || '' IN (SELECT value FROM json_each(:datasets))
    AND record.event_time >= :event_start AND record.event_time < :event_end
    AND (:created_after IS NULL OR record.created_at >= :created_after)
    AND (:created_before IS NULL OR record.created_at < :created_before)
    AND (:attempts_max IS NULL OR record.attempts <= :attempts_max)
    AND (:error_codes IS NULL OR record.last_error_code IN (SELECT value FROM json_each(:error_codes)))
ORDER BY record.event_time, record.wal_id
LIMIT :limit;

-- name: create
INSERT INTO replay_runs (
    replay_run_id, name, mode, env, state, spec, spec_sha256, batches, actor, reason, change_ref, mismatches_seen,
    created_at, updated_at
)
VALUES (
    :replay_run_id, :name, :mode, :env, 'planned', :spec, :spec_sha256, :batches, :actor, :reason, :change_ref, 0, :at,
    :at
);

-- name: freeze
INSERT INTO replay_units (
    replay_run_id, position, batch, wal_id, dataset, selected_status, selected_version, state
)
SELECT
    :replay_run_id, value ->> '$.position', value ->> '$.batch', value ->> '$.wal_id', value ->> '$.dataset',
    value ->> '$.status', value ->> '$.version', 'selected'
FROM json_each(:units);

-- name: units_of_batch
SELECT
    unit.selected_status, unit.selected_version, record.wal_id, record.version, record.status, record.dataset,
    record.partition_key, record.event_time, record.attempts, record.last_error_code, record.object_uri,
    EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = record.wal_id) AS is_superseded,
    (
        SELECT result.code_version FROM nodd_wal_outcomes AS result
        WHERE result.wal_id = record.wal_id
        ORDER BY result.attempt DESC
        LIMIT 1
    ) AS made_by
FROM replay_units AS unit
INNER JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id
WHERE unit.replay_run_id = :replay_run_id AND unit.state = 'selected' AND unit.batch = :batch
ORDER BY record.wal_id;

-- name: decide
UPDATE replay_units SET
    state = decision.value ->> '$.state',
    skip_reason = decision.value ->> '$.skip_reason',
    admitted_version = decision.value ->> '$.admitted_version',
    decided_at = :at
FROM json_each(:decisions) AS decision
WHERE
    replay_units.replay_run_id = :replay_run_id AND replay_units.wal_id = decision.value ->> '$.wal_id'
    AND replay_units.state = 'selected';

-- name: live_waits_since
-- Since when the live unit waits that has waited longest, of datasets that are on.
SELECT min(updated_at) FROM nodd_wal_records
WHERE status = 'pending' AND lane = 'live' AND dataset IN (SELECT value FROM json_each(:datasets));
