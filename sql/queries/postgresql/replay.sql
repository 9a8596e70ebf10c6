-- Statements of replays for PostgreSQL: a batch is one JSON parameter, read by jsonb_to_recordset.

-- name: lock
-- Replays are changed one at a time, so that each sees what the others have in flight.
SELECT pg_advisory_xact_lock(7038562158971);

-- name: select_units
-- Each (status, dataset) is one range of nodd_wal_records_by_selection, read no further than the limit.
WITH taken AS (
    SELECT record.*
    FROM jsonb_to_recordset(CAST(:groups AS jsonb)) AS wanted (status text, dataset text)
    CROSS JOIN LATERAL (
        SELECT * FROM nodd_wal_records AS candidate
        WHERE
            candidate.status = wanted.status AND candidate.dataset = wanted.dataset
            AND candidate.event_time >= CAST(:event_start AS timestamptz)
            AND candidate.event_time < CAST(:event_end AS timestamptz)
            AND (CAST(:created_after AS timestamptz) IS NULL OR candidate.created_at >= CAST(:created_after AS timestamptz))
            AND (CAST(:created_before AS timestamptz) IS NULL OR candidate.created_at < CAST(:created_before AS timestamptz))
            AND (CAST(:attempts_max AS integer) IS NULL OR candidate.attempts <= :attempts_max)
            AND (
                CAST(:error_codes AS jsonb) IS NULL
                OR jsonb_exists(CAST(:error_codes AS jsonb), candidate.last_error_code)
            )
        ORDER BY candidate.event_time, candidate.wal_id
        LIMIT :limit
    ) AS record
    ORDER BY record.event_time, record.wal_id
    LIMIT :limit
)

SELECT
    taken.wal_id, taken.version, taken.status, taken.dataset, taken.partition_key, taken.event_time, taken.attempts,
    taken.last_error_code, taken.object_uri,
    EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = taken.wal_id) AS is_superseded,
    (
        SELECT result.code_version FROM nodd_wal_outcomes AS result
        WHERE result.wal_id = taken.wal_id
        ORDER BY result.attempt DESC
        LIMIT 1
    ) AS made_by
FROM taken
ORDER BY taken.event_time, taken.wal_id;

-- name: count_by_status
-- Each (status, dataset) is one range of nodd_wal_records_by_selection.
SELECT record.status, count(*) AS units
FROM jsonb_to_recordset(CAST(:groups AS jsonb)) AS wanted (status text, dataset text)
INNER JOIN nodd_wal_records AS record ON wanted.status = record.status AND wanted.dataset = record.dataset
WHERE
    record.event_time >= CAST(:event_start AS timestamptz) AND record.event_time < CAST(:event_end AS timestamptz)
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
    record.wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
    AND record.status || '' IN (SELECT jsonb_array_elements_text(CAST(:statuses AS jsonb)))
    AND record.dataset || '' IN (SELECT jsonb_array_elements_text(CAST(:datasets AS jsonb)))
    AND record.event_time >= CAST(:event_start AS timestamptz)
    AND record.event_time < CAST(:event_end AS timestamptz)
    AND (CAST(:created_after AS timestamptz) IS NULL OR record.created_at >= CAST(:created_after AS timestamptz))
    AND (CAST(:created_before AS timestamptz) IS NULL OR record.created_at < CAST(:created_before AS timestamptz))
    AND (CAST(:attempts_max AS integer) IS NULL OR record.attempts <= :attempts_max)
    AND (CAST(:error_codes AS jsonb) IS NULL OR jsonb_exists(CAST(:error_codes AS jsonb), record.last_error_code))
ORDER BY record.event_time, record.wal_id
LIMIT :limit;

-- name: create
INSERT INTO replay_runs (
    replay_run_id, name, mode, env, state, spec, spec_sha256, batches, actor, reason, change_ref, mismatches_seen,
    created_at, updated_at
)
VALUES (
    :replay_run_id, :name, :mode, :env, 'planned', CAST(:spec AS jsonb), :spec_sha256, :batches, :actor, :reason,
    :change_ref, 0, CAST(:at AS timestamptz), CAST(:at AS timestamptz)
);

-- name: freeze
INSERT INTO replay_units (
    replay_run_id, position, batch, wal_id, dataset, selected_status, selected_version, state
)
SELECT :replay_run_id, unit.position, unit.batch, unit.wal_id, unit.dataset, unit.status, unit.version, 'selected'
FROM jsonb_to_recordset(CAST(:units AS jsonb)) AS unit (
    position integer, batch integer, wal_id text, dataset text, status text, version integer
);

-- name: units_of_batch
-- Nobody moves these records until the transaction ends.
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
ORDER BY record.wal_id
FOR UPDATE OF record;

-- name: decide
UPDATE replay_units AS unit SET
    state = decision.state,
    skip_reason = decision.skip_reason,
    admitted_version = decision.admitted_version,
    decided_at = :at
FROM jsonb_to_recordset(CAST(:decisions AS jsonb)) AS decision (
    wal_id text, state text, skip_reason text, admitted_version integer
)
WHERE unit.replay_run_id = :replay_run_id AND unit.wal_id = decision.wal_id AND unit.state = 'selected';

-- name: live_waits_since
-- Since when the live unit waits that has waited longest, of datasets that are on.
SELECT min(updated_at) FROM nodd_wal_records
WHERE
    status = 'pending' AND lane = 'live'
    AND dataset IN (SELECT jsonb_array_elements_text(CAST(:datasets AS jsonb)));
