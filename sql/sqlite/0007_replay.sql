-- Replays: what a person had done again, on which units, and what came of each (RPL-05).
CREATE TABLE replay_runs (
    replay_run_id text NOT NULL,
    name text NOT NULL,
    mode text NOT NULL,
    env text NOT NULL,
    state text NOT NULL,
    -- Why a person or the engine paused or stopped it; null while it runs.
    state_reason text,
    spec text NOT NULL,
    spec_sha256 text NOT NULL,
    batches integer NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    change_ref text,
    -- Differing results that a person had seen when the replay last began to run; one more stops it.
    mismatches_seen integer NOT NULL,
    created_at text NOT NULL,
    updated_at text NOT NULL,
    finished_at text,
    CONSTRAINT replay_runs_one_row_per_replay PRIMARY KEY (replay_run_id),
    CONSTRAINT replay_runs_id_is_short CHECK (length(replay_run_id) BETWEEN 1 AND 60),
    CONSTRAINT replay_runs_name_is_short CHECK (length(name) BETWEEN 1 AND 100),
    -- A mode that nobody carries out would run for ever.
    CONSTRAINT replay_runs_mode_is_known CHECK (mode IN ('failed-only', 'repair-and-replace')),
    CONSTRAINT replay_runs_env_is_known CHECK (env IN ('dev', 'stage', 'prod')),
    -- A state that nobody knows would never be worked on.
    CONSTRAINT replay_runs_state_is_known CHECK (state IN ('planned', 'running', 'paused', 'stopped', 'finished')),
    -- A halt for no reason could not be judged by the one who resumes it.
    CONSTRAINT replay_runs_halt_has_reason CHECK (
        (state IN ('paused', 'stopped')) = (state_reason IS NOT NULL) AND coalesce(length(state_reason), 1) BETWEEN 1 AND 1000
    ),
    CONSTRAINT replay_runs_finish_is_stamped CHECK ((state = 'finished') = (finished_at IS NOT NULL)),
    -- The hash says which selection was approved.
    CONSTRAINT replay_runs_spec_hash_is_sha256 CHECK (length(spec_sha256) = 64 AND spec_sha256 NOT GLOB '*[^0-9a-f]*'),
    CONSTRAINT replay_runs_spec_is_object CHECK (json_type(spec) = 'object'),
    CONSTRAINT replay_runs_counts_are_counted CHECK (batches >= 0 AND mismatches_seen >= 0),
    -- A replay by nobody or for nothing is no audit.
    CONSTRAINT replay_runs_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT replay_runs_change_ref_is_bounded CHECK (length(change_ref) BETWEEN 1 AND 200),
    -- A result that is replaced is for a person to answer for, with a change that can be looked up (RPL-07).
    CONSTRAINT replay_runs_replacing_has_change_ref CHECK (mode <> 'repair-and-replace' OR change_ref IS NOT NULL),
    -- Text in one form only sorts as time.
    CONSTRAINT replay_runs_times_are_rfc3339 CHECK (
        created_at GLOB '????-??-??T??:??:??.??????Z' AND updated_at GLOB '????-??-??T??:??:??.??????Z'
        AND coalesce(finished_at GLOB '????-??-??T??:??:??.??????Z', TRUE)
    )
) STRICT
-- ;
CREATE INDEX replay_runs_by_state ON replay_runs (state, created_at)
-- ;
-- A replay begins with a selection that nothing has come of yet.
CREATE TRIGGER replay_runs_begin_planned BEFORE INSERT ON replay_runs
WHEN NOT coalesce(NEW.state = 'planned' AND NEW.created_at = NEW.updated_at AND NEW.mismatches_seen = 0, FALSE)
BEGIN
    SELECT json_extract(
        '{}', 'replay_begins_planned: ' || NEW.replay_run_id || ': null > ' || coalesce(NEW.state, 'null')
    );
    SELECT RAISE(ABORT, 'replay_begins_planned');
END
-- ;
-- Every update is a transition, and every other ordered pair of states is illegal.
CREATE TRIGGER replay_runs_transition_is_legal BEFORE UPDATE ON replay_runs
WHEN NOT coalesce(
    OLD.state || '>' || NEW.state IN (
        'planned>running', 'running>paused', 'running>stopped', 'running>finished', 'paused>running',
        'paused>stopped', 'stopped>running'
    ), FALSE
)
BEGIN
    SELECT json_extract(
        '{}', 'illegal_transition: ' || OLD.replay_run_id || ': ' || OLD.state || ' > ' || coalesce(NEW.state, 'null')
    );
    SELECT RAISE(ABORT, 'illegal_transition');
END
-- ;
-- What was approved never changes.
CREATE TRIGGER replay_runs_identity_is_immutable BEFORE UPDATE ON replay_runs
WHEN (
    NEW.replay_run_id, NEW.name, NEW.mode, NEW.env, NEW.spec, NEW.spec_sha256, NEW.batches, NEW.actor, NEW.reason,
    NEW.change_ref, NEW.created_at
) IS NOT (
    OLD.replay_run_id, OLD.name, OLD.mode, OLD.env, OLD.spec, OLD.spec_sha256, OLD.batches, OLD.actor, OLD.reason,
    OLD.change_ref, OLD.created_at
)
BEGIN
    SELECT RAISE(ABORT, 'replay_runs_identity_is_immutable');
END
-- ;
CREATE TRIGGER replay_runs_are_not_deleted BEFORE DELETE ON replay_runs
BEGIN
    SELECT RAISE(ABORT, 'replay_runs_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER replay_runs_are_not_replaced BEFORE INSERT ON replay_runs
WHEN EXISTS (SELECT 1 FROM replay_runs AS r WHERE r.replay_run_id = NEW.replay_run_id)
BEGIN
    SELECT RAISE(ABORT, 'replay_runs_are_kept');
END
-- ;
-- The frozen selection of a replay, and what was decided about each unit when its batch came.
CREATE TABLE replay_units (
    replay_run_id text NOT NULL,
    -- The order of the selection: event time, then wal_id.
    position integer NOT NULL,
    batch integer NOT NULL,
    wal_id text NOT NULL,
    dataset text NOT NULL,
    -- How the record stood when it was selected.
    selected_status text NOT NULL,
    selected_version integer NOT NULL,
    state text NOT NULL,
    skip_reason text,
    -- The version that the admission gave the record; its history after that tells what came of it.
    admitted_version integer,
    decided_at text,
    CONSTRAINT replay_units_one_row_per_position PRIMARY KEY (replay_run_id, position),
    CONSTRAINT replay_units_replay_is_known FOREIGN KEY (replay_run_id) REFERENCES replay_runs (replay_run_id),
    CONSTRAINT replay_units_record_is_known FOREIGN KEY (wal_id) REFERENCES nodd_wal_records (wal_id),
    -- An admission that the record's history does not know has not happened.
    CONSTRAINT replay_units_admission_is_in_history
    FOREIGN KEY (wal_id, admitted_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT replay_units_are_counted_from_one CHECK (position >= 1 AND batch >= 1),
    CONSTRAINT replay_units_state_is_known CHECK (state IN ('selected', 'admitted', 'skipped')),
    -- Doing nothing is an outcome with a reason.
    CONSTRAINT replay_units_skip_has_reason CHECK (
        (state = 'skipped') = (skip_reason IS NOT NULL) AND coalesce(length(skip_reason), 1) BETWEEN 1 AND 60
    ),
    CONSTRAINT replay_units_admission_has_version CHECK ((state = 'admitted') = (admitted_version IS NOT NULL)),
    CONSTRAINT replay_units_decision_is_stamped CHECK (
        (state = 'selected') = (decided_at IS NULL)
        AND coalesce(decided_at GLOB '????-??-??T??:??:??.??????Z', TRUE)
    )
) STRICT
-- ;
-- A unit that is in a replay twice would be done twice.
CREATE UNIQUE INDEX replay_units_one_row_per_unit ON replay_units (wal_id, replay_run_id)
-- ;
-- The next batch, and the units that are let in.
CREATE INDEX replay_units_by_state ON replay_units (replay_run_id, state, batch)
-- ;
-- The rate.
CREATE INDEX replay_units_by_decision ON replay_units (decided_at) WHERE decided_at IS NOT NULL
-- ;
-- The selection is frozen once the replay runs; a row begins undecided.
CREATE TRIGGER replay_units_are_frozen BEFORE INSERT ON replay_units
WHEN
    NEW.state IS NOT 'selected'
    OR NOT EXISTS (
        SELECT 1 FROM replay_runs AS run WHERE run.replay_run_id = NEW.replay_run_id AND run.state = 'planned'
    )
    -- INSERT OR REPLACE deletes rows without a DELETE trigger.
    OR EXISTS (
        SELECT 1 FROM replay_units AS r
        WHERE r.replay_run_id = NEW.replay_run_id AND (r.position = NEW.position OR r.wal_id = NEW.wal_id)
    )
BEGIN
    SELECT RAISE(ABORT, 'replay_units_are_frozen');
END
-- ;
-- Each unit is decided about once, and only while its replay runs.
CREATE TRIGGER replay_units_are_decided_once BEFORE UPDATE ON replay_units
WHEN
    OLD.state <> 'selected' OR NEW.state NOT IN ('admitted', 'skipped')
    OR (
        NEW.replay_run_id, NEW.position, NEW.batch, NEW.wal_id, NEW.dataset, NEW.selected_status, NEW.selected_version
    ) IS NOT (
        OLD.replay_run_id, OLD.position, OLD.batch, OLD.wal_id, OLD.dataset, OLD.selected_status, OLD.selected_version
    )
    OR NOT EXISTS (
        SELECT 1 FROM replay_runs AS run WHERE run.replay_run_id = NEW.replay_run_id AND run.state = 'running'
    )
BEGIN
    SELECT RAISE(ABORT, 'replay_units_are_decided_once');
END
-- ;
CREATE TRIGGER replay_units_are_not_deleted BEFORE DELETE ON replay_units
BEGIN
    SELECT RAISE(ABORT, 'replay_units_are_kept');
END
-- ;
-- What came of each unit: skipped or waiting, else the first end after its admission, else where it stands now.
CREATE VIEW replay_outcomes AS
SELECT
    unit.replay_run_id,
    unit.position,
    unit.batch,
    unit.wal_id,
    unit.dataset,
    unit.skip_reason,
    CASE
        WHEN unit.state <> 'admitted' THEN unit.state
        ELSE coalesce(
            (
                SELECT change.to_status FROM nodd_wal_transitions AS change
                WHERE
                    change.wal_id = unit.wal_id AND change.version > unit.admitted_version
                    AND change.to_status IN ('succeeded', 'quarantined')
                ORDER BY change.version
                LIMIT 1
            ),
            CASE WHEN record.status = 'failed' AND record.next_attempt_at IS NOT NULL THEN 'retrying' ELSE record.status END
        )
    END AS outcome
FROM replay_units AS unit
INNER JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id
