-- Statements of replays.

-- name: change_state
UPDATE replay_runs SET
    state = :to_state,
    state_reason = :state_reason,
    mismatches_seen = coalesce(:mismatches_seen, mismatches_seen),
    updated_at = :at,
    finished_at = :finished_at
WHERE replay_run_id = :replay_run_id AND state = :from_state
RETURNING replay_run_id;

-- name: run
SELECT * FROM replay_runs WHERE replay_run_id = :replay_run_id;

-- name: runs
SELECT * FROM replay_runs WHERE (mode = 'backfill') = :backfills ORDER BY created_at DESC, replay_run_id LIMIT :limit;

-- name: running
-- Running replays that admit batches; backfills list days instead (backfill.sql).
SELECT replay_run_id FROM replay_runs WHERE state = 'running' AND mode <> 'backfill' ORDER BY created_at, replay_run_id;

-- name: next_batch
SELECT min(batch) FROM replay_units WHERE replay_run_id = :replay_run_id AND state = 'selected';

-- name: batch_datasets
SELECT DISTINCT dataset FROM replay_units
WHERE replay_run_id = :replay_run_id AND state = 'selected' AND batch = :batch;

-- name: account
SELECT dataset, outcome, skip_reason, count(*) AS units
FROM replay_outcomes
WHERE replay_run_id = :replay_run_id
GROUP BY dataset, outcome, skip_reason
ORDER BY dataset, outcome, skip_reason;

-- name: unfinished
-- Batches with a unit that is pending or in progress; a unit that waits for its retry does not delay the next batch.
SELECT DISTINCT found.replay_run_id, found.batch, found.dataset
FROM replay_runs AS run
INNER JOIN replay_outcomes AS found ON run.replay_run_id = found.replay_run_id
WHERE run.state IN ('running', 'paused') AND found.outcome IN ('pending', 'in_progress');

-- name: recent_batches
SELECT replay_run_id, batch, max(decided_at) AS decided_at, count(admitted_version) AS admitted
FROM replay_units
WHERE decided_at > :since
GROUP BY replay_run_id, batch;

-- name: differing
-- Results of a replay that differ without approval, in any attempt after the unit's admission.
SELECT unit.wal_id, unit.dataset, mismatch.attempt, mismatch.at
FROM replay_units AS unit
INNER JOIN nodd_wal_transitions AS admission
    ON unit.wal_id = admission.wal_id AND unit.admitted_version = admission.version
INNER JOIN nodd_wal_outcomes AS mismatch
    ON unit.wal_id = mismatch.wal_id AND mismatch.attempt > admission.attempts
WHERE unit.replay_run_id = :replay_run_id AND unit.state = 'admitted' AND NOT mismatch.permitted
ORDER BY unit.position, mismatch.attempt;

-- name: outcomes
SELECT
    found.position, found.batch, found.outcome, found.skip_reason, record.wal_id, record.dataset, record.status,
    record.version, record.attempts, record.last_error_code, record.event_time, record.partition_key, record.object_uri,
    record.replay_reason, record.replay_run_id, record.updated_at
FROM replay_outcomes AS found
INNER JOIN nodd_wal_records AS record ON found.wal_id = record.wal_id
WHERE found.replay_run_id = :replay_run_id
ORDER BY found.position
LIMIT :limit;

-- name: lock
-- Replays are changed one at a time, so that each change reads the units in flight of all other replays.
@lock_all('kfm_dagster.replay');

-- name: select_units
-- sqlite: it has no LATERAL. The inner query selects rowids, so that a record is read only if a filter needs it.
-- Each (status, dataset) is one range of nodd_wal_records_by_selection, read only to the limit.
WITH taken AS (
    SELECT candidate_of_group.rowid AS id
    FROM json_each(:groups) AS wanted
    CROSS JOIN nodd_wal_records AS candidate_of_group ON candidate_of_group.rowid IN (
        SELECT candidate.rowid FROM nodd_wal_records AS candidate
        WHERE
            candidate.status = wanted.value ->> '$.status' AND candidate.dataset = wanted.value ->> '$.dataset'
            AND candidate.event_time >= :event_start AND candidate.event_time < :event_end
            AND (:first_day IS NULL OR candidate.partition_key >= :first_day)
            AND (:last_day IS NULL OR candidate.partition_key <= :last_day)
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

-- name: select_units
-- postgresql: LATERAL, which reads each group only to its limit.
-- Each (status, dataset) is one range of nodd_wal_records_by_selection, read only to the limit.
WITH taken AS (
    SELECT record.*
    FROM jsonb_to_recordset(CAST(:groups AS jsonb)) AS wanted (status text, dataset text)
    CROSS JOIN LATERAL (
        SELECT * FROM nodd_wal_records AS candidate
        WHERE
            candidate.status = wanted.status AND candidate.dataset = wanted.dataset
            AND candidate.event_time >= CAST(:event_start AS timestamptz)
            AND candidate.event_time < CAST(:event_end AS timestamptz)
            AND (CAST(:first_day AS text) IS NULL OR candidate.partition_key >= :first_day)
            AND (CAST(:last_day AS text) IS NULL OR candidate.partition_key <= :last_day)
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
-- CROSS JOIN fixes SQLite's join order, so that each (status, dataset) is one range of nodd_wal_records_by_selection.
SELECT record.status, count(*) AS units
FROM @batch(:groups, wanted, status text, dataset text)
CROSS JOIN nodd_wal_records AS record
WHERE
    wanted.status = record.status AND wanted.dataset = record.dataset
    AND record.event_time >= @as_time(:event_start) AND record.event_time < @as_time(:event_end)
    AND (CAST(:first_day AS text) IS NULL OR record.partition_key >= :first_day)
    AND (CAST(:last_day AS text) IS NULL OR record.partition_key <= :last_day)
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
    record.wal_id IN (@each(:wal_ids))
    AND record.status || '' IN (@each(:statuses))
    AND record.dataset || '' IN (@each(:datasets))
    AND record.event_time >= @as_time(:event_start)
    AND record.event_time < @as_time(:event_end)
    AND (CAST(:first_day AS text) IS NULL OR record.partition_key >= :first_day)
    AND (CAST(:last_day AS text) IS NULL OR record.partition_key <= :last_day)
    AND (@as_time(:created_after) IS NULL OR record.created_at >= @as_time(:created_after))
    AND (@as_time(:created_before) IS NULL OR record.created_at < @as_time(:created_before))
    AND (CAST(:attempts_max AS integer) IS NULL OR record.attempts <= :attempts_max)
    AND (@as_json(:error_codes) IS NULL OR @has(@as_json(:error_codes), record.last_error_code))
ORDER BY record.event_time, record.wal_id
LIMIT :limit;

-- name: create
INSERT INTO replay_runs (
    replay_run_id, name, mode, env, state, spec, spec_sha256, batches, actor, reason, change_ref, mismatches_seen,
    created_at, updated_at
)
VALUES (
    :replay_run_id, :name, :mode, :env, 'planned', @as_json(:spec), :spec_sha256, :batches, :actor, :reason,
    :change_ref, 0, @as_time(:at), @as_time(:at)
);

-- name: freeze
INSERT INTO replay_units (
    replay_run_id, position, batch, wal_id, dataset, selected_status, selected_version, state
)
SELECT :replay_run_id, unit.position, unit.batch, unit.wal_id, unit.dataset, unit.status, unit.version, 'selected'
FROM @batch(:units, unit,
    position integer, batch integer, wal_id text, dataset text, status text, version integer
);

-- name: units_of_batch
-- Locks these records, so that no other transaction changes them until this transaction ends.
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
@lock(FOR UPDATE OF record);

-- name: decide
UPDATE replay_units AS unit SET
    state = decision.state,
    skip_reason = decision.skip_reason,
    admitted_version = decision.admitted_version,
    decided_at = :at
FROM @batch(:decisions, decision,
    wal_id text, state text, skip_reason text, admitted_version integer
)
WHERE
    -- The batch is a condition, so that for each decision SQLite reads only the batch's rows, not all waiting rows.
    unit.replay_run_id = :replay_run_id AND unit.state = 'selected' AND unit.batch = :batch
    AND unit.wal_id = decision.wal_id;

-- name: live_waits_since
-- The time at which the oldest pending live unit of these datasets began to wait.
SELECT min(updated_at) AS oldest_at FROM nodd_wal_records
WHERE
    status = 'pending' AND lane = 'live'
    AND dataset IN (@each(:datasets));
