-- Stages: how each operator of a run went, attempt by attempt, and the chained record of everything that moved it.
CREATE TABLE stage_audit (
    seq integer NOT NULL,
    at text NOT NULL,
    run_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    kind text NOT NULL,
    -- What happened: a move, a gate, a stop.
    event text NOT NULL,
    details text NOT NULL,
    previous_hash text NOT NULL,
    -- SHA-256 of this line and the hash before it: a line that is changed, taken out or put in shows.
    hash text NOT NULL,
    CONSTRAINT stage_audit_one_line_per_number PRIMARY KEY (seq),
    CONSTRAINT stage_audit_kind_is_known CHECK (
        kind IN ('transition', 'gate', 'stop', 'retry', 'checkpoint', 'compensation', 'override', 'replay')
    ),
    CONSTRAINT stage_audit_event_is_named CHECK (length(event) BETWEEN 1 AND 100),
    CONSTRAINT stage_audit_details_are_object CHECK (json_type(details) = 'object'),
    CONSTRAINT stage_audit_hash_is_sha256 CHECK (length(hash) = 64 AND hash NOT GLOB '*[^0-9a-f]*'),
    -- Two lines after one would be two histories.
    CONSTRAINT stage_audit_does_not_fork UNIQUE (previous_hash)
) STRICT
-- ;
CREATE INDEX stage_audit_by_stage ON stage_audit (run_id, stage, attempt, kind, event)
-- ;
CREATE INDEX stage_audit_by_time ON stage_audit (at, seq)
-- ;
CREATE TRIGGER stage_audit_is_chained BEFORE INSERT ON stage_audit
WHEN
    NEW.previous_hash IS NOT coalesce(
        (SELECT p.hash FROM stage_audit AS p WHERE p.seq = NEW.seq - 1),
        CASE WHEN NEW.seq = 1 THEN '0000000000000000000000000000000000000000000000000000000000000000' END
    )
    OR EXISTS (SELECT 1 FROM stage_audit AS r WHERE r.seq = NEW.seq)
BEGIN
    SELECT RAISE(ABORT, 'stage_audit_is_chained');
END
-- ;
CREATE TRIGGER stage_audit_is_not_changed BEFORE UPDATE ON stage_audit
BEGIN
    SELECT RAISE(ABORT, 'stage_audit_is_append_only');
END
-- ;
CREATE TRIGGER stage_audit_is_not_deleted BEFORE DELETE ON stage_audit
BEGIN
    SELECT RAISE(ABORT, 'stage_audit_is_append_only');
END
-- ;
CREATE TABLE stage_state (
    run_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    state text NOT NULL,
    idempotency_key text NOT NULL,
    -- What the stage was given, as hashes; a retry is given the same.
    input_hashes text NOT NULL,
    opened_at text NOT NULL,
    started_at text,
    ended_at text,
    error_class text,
    -- Gates whose degraded path was taken, and E_SYNC; an output with any is [Restricted].
    restricted text NOT NULL DEFAULT '[]',
    -- What was saved before the stage was left.
    checkpoint_uri text,
    output_sha256 text,
    -- What was undone outside the database.
    compensation text,
    CONSTRAINT stage_state_one_row_per_attempt PRIMARY KEY (run_id, stage, attempt),
    CONSTRAINT stage_state_is_known CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'rolled_back')),
    CONSTRAINT stage_state_key_is_sha256
    CHECK (length(idempotency_key) = 64 AND idempotency_key NOT GLOB '*[^0-9a-f]*'),
    CONSTRAINT stage_state_inputs_are_array CHECK (json_type(input_hashes) = 'array'),
    CONSTRAINT stage_state_restricted_is_array CHECK (json_type(restricted) = 'array'),
    CONSTRAINT stage_state_error_is_of_a_failure CHECK (
        (state IN ('failed', 'rolled_back')) = (error_class IS NOT NULL)
        AND coalesce(
            error_class IN ('E_INPUT', 'E_DIM', 'E_GATE', 'E_SYNC', 'E_UQ', 'E_INTERNAL'), TRUE
        )
    ),
    CONSTRAINT stage_state_times_fit CHECK (
        (state = 'pending') = (started_at IS NULL) AND (state IN ('pending', 'running')) = (ended_at IS NULL)
    ),
    -- A checkpoint without its digest could not be compared with anything.
    CONSTRAINT stage_state_checkpoint_has_a_digest CHECK (checkpoint_uri IS NULL OR output_sha256 IS NOT NULL),
    CONSTRAINT stage_state_compensation_is_object CHECK (compensation IS NULL OR json_type(compensation) = 'object'),
    CONSTRAINT stage_state_rollback_rests_on_something
    CHECK (state <> 'rolled_back' OR compensation IS NOT NULL OR checkpoint_uri IS NOT NULL)
) STRICT, WITHOUT ROWID
-- ;
CREATE INDEX stage_state_by_time ON stage_state (opened_at)
-- ;
CREATE INDEX stage_state_unfinished ON stage_state (state, run_id) WHERE state IN ('pending', 'running')
-- ;
CREATE TRIGGER stage_state_begins_pending BEFORE INSERT ON stage_state
WHEN
    NEW.state <> 'pending'
    OR NEW.attempt <> 1 + coalesce(
        (SELECT max(p.attempt) FROM stage_state AS p WHERE p.run_id = NEW.run_id AND p.stage = NEW.stage), 0
    )
    -- One attempt after the other.
    OR EXISTS (
        SELECT 1 FROM stage_state AS p
        WHERE p.run_id = NEW.run_id AND p.stage = NEW.stage AND p.state IN ('pending', 'running')
    )
BEGIN
    SELECT RAISE(ABORT, 'stage_state_begins_pending');
END
-- ;
-- Another key would be another trigger; after a failure other inputs would be another question (PCS-05).
CREATE TRIGGER stage_state_retry_keeps_key_and_inputs BEFORE INSERT ON stage_state
WHEN
    EXISTS (
        SELECT 1 FROM stage_state AS p
        WHERE
            p.run_id = NEW.run_id AND p.stage = NEW.stage AND p.attempt = NEW.attempt - 1
            AND (
                p.idempotency_key <> NEW.idempotency_key
                OR (p.state <> 'succeeded' AND p.input_hashes <> NEW.input_hashes)
            )
    )
BEGIN
    SELECT RAISE(ABORT, 'stage_state_retry_keeps_key_and_inputs');
END
-- ;
CREATE TRIGGER stage_state_move_is_legal BEFORE UPDATE ON stage_state
WHEN
    OLD.state || '>' || NEW.state NOT IN (
        'pending>running', 'running>succeeded', 'running>failed', 'failed>rolled_back'
    )
    OR (NEW.run_id, NEW.stage, NEW.attempt, NEW.idempotency_key, NEW.input_hashes, NEW.opened_at)
    IS NOT (OLD.run_id, OLD.stage, OLD.attempt, OLD.idempotency_key, OLD.input_hashes, OLD.opened_at)
BEGIN
    SELECT RAISE(ABORT, 'stage_state_move_is_legal');
END
-- ;
-- A move that nobody can read of did not happen as it should (PCS-15).
CREATE TRIGGER stage_state_move_is_audited BEFORE UPDATE ON stage_state
WHEN
    OLD.state <> NEW.state
    AND NOT EXISTS (
        SELECT 1 FROM stage_audit AS a
        WHERE
            a.run_id = NEW.run_id AND a.stage = NEW.stage AND a.attempt = NEW.attempt
            AND a.kind = 'transition' AND a.event = OLD.state || '>' || NEW.state
    )
BEGIN
    SELECT RAISE(ABORT, 'stage_state_move_is_audited');
END
-- ;
CREATE TRIGGER stage_state_is_not_deleted BEFORE DELETE ON stage_state
BEGIN
    SELECT RAISE(ABORT, 'stage_state_is_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER stage_state_is_not_replaced BEFORE INSERT ON stage_state
WHEN
    EXISTS (
        SELECT 1 FROM stage_state AS r
        WHERE r.run_id = NEW.run_id AND r.stage = NEW.stage AND r.attempt = NEW.attempt
    )
BEGIN
    SELECT RAISE(ABORT, 'stage_state_is_kept');
END
