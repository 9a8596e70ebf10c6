-- Stages: how each operator of a run went, attempt by attempt, and the chained record of everything that moved it.
CREATE TABLE stage_audit (
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    run_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    kind text NOT NULL,
    -- What happened: a move, a gate, a stop.
    event text NOT NULL,
    -- Text, because the hash is of this text.
    details text NOT NULL,
    previous_hash text NOT NULL,
    -- SHA-256 of this line and the hash before it: a line that is changed, taken out or put in shows.
    hash text NOT NULL,
    CONSTRAINT stage_audit_one_line_per_number PRIMARY KEY (seq),
    CONSTRAINT stage_audit_kind_is_known CHECK (
        kind IN ('transition', 'gate', 'stop', 'retry', 'checkpoint', 'compensation', 'override', 'replay')
    ),
    CONSTRAINT stage_audit_event_is_named CHECK (length(event) BETWEEN 1 AND 100),
    CONSTRAINT stage_audit_details_are_object CHECK (jsonb_typeof(details::jsonb) = 'object'),
    CONSTRAINT stage_audit_hash_is_sha256 CHECK (hash ~ '^[0-9a-f]{64}$'),
    -- Two lines after one would be two histories.
    CONSTRAINT stage_audit_does_not_fork UNIQUE (previous_hash)
)
-- ;
CREATE INDEX stage_audit_by_stage ON stage_audit (run_id, stage, attempt, kind, event)
-- ;
CREATE INDEX stage_audit_by_time ON stage_audit (at, seq)
-- ;
CREATE FUNCTION stage_audit_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'stage_audit_is_append_only' USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.previous_hash IS DISTINCT FROM coalesce(
        (SELECT p.hash FROM stage_audit AS p WHERE p.seq = NEW.seq - 1),
        CASE WHEN NEW.seq = 1 THEN '0000000000000000000000000000000000000000000000000000000000000000' END
    ) THEN
        RAISE EXCEPTION 'stage_audit_is_chained' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER stage_audit_is_guarded BEFORE INSERT OR UPDATE OR DELETE ON stage_audit
FOR EACH ROW EXECUTE FUNCTION stage_audit_guard()
-- ;
CREATE TRIGGER stage_audit_is_not_truncated BEFORE TRUNCATE ON stage_audit
FOR EACH STATEMENT EXECUTE FUNCTION stage_audit_guard()
-- ;
CREATE TABLE stage_state (
    run_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    state text NOT NULL,
    idempotency_key text NOT NULL,
    -- What the stage was given, as hashes; a retry is given the same.
    input_hashes jsonb NOT NULL,
    opened_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    error_class text,
    -- Gates whose degraded path was taken, and E_SYNC; an output with any is [Restricted].
    restricted jsonb NOT NULL DEFAULT '[]',
    -- What was saved before the stage was left.
    checkpoint_uri text,
    output_sha256 text,
    -- What was undone outside the database.
    compensation jsonb,
    CONSTRAINT stage_state_one_row_per_attempt PRIMARY KEY (run_id, stage, attempt),
    CONSTRAINT stage_state_is_known CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'rolled_back')),
    CONSTRAINT stage_state_key_is_sha256 CHECK (idempotency_key ~ '^[0-9a-f]{64}$'),
    CONSTRAINT stage_state_inputs_are_array CHECK (jsonb_typeof(input_hashes) = 'array'),
    CONSTRAINT stage_state_restricted_is_array CHECK (jsonb_typeof(restricted) = 'array'),
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
    CONSTRAINT stage_state_compensation_is_object
    CHECK (compensation IS NULL OR jsonb_typeof(compensation) = 'object'),
    CONSTRAINT stage_state_rollback_rests_on_something
    CHECK (state <> 'rolled_back' OR compensation IS NOT NULL OR checkpoint_uri IS NOT NULL)
)
-- ;
CREATE INDEX stage_state_by_time ON stage_state (opened_at)
-- ;
CREATE INDEX stage_state_unfinished ON stage_state (state, run_id) WHERE state IN ('pending', 'running')
-- ;
CREATE FUNCTION stage_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'stage_state_is_kept' USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'pending'
            OR NEW.attempt <> 1 + coalesce(
                (SELECT max(p.attempt) FROM stage_state AS p WHERE p.run_id = NEW.run_id AND p.stage = NEW.stage), 0
            )
            -- One attempt after the other.
            OR EXISTS (
                SELECT 1 FROM stage_state AS p
                WHERE p.run_id = NEW.run_id AND p.stage = NEW.stage AND p.state IN ('pending', 'running')
            )
        THEN
            RAISE EXCEPTION 'stage_state_begins_pending' USING ERRCODE = 'restrict_violation';
        END IF;
        -- Another key would be another trigger; after a failure other inputs would be another question (PCS-05).
        IF EXISTS (
            SELECT 1 FROM stage_state AS p
            WHERE
                p.run_id = NEW.run_id AND p.stage = NEW.stage AND p.attempt = NEW.attempt - 1
                AND (
                    p.idempotency_key <> NEW.idempotency_key
                    OR (p.state <> 'succeeded' AND p.input_hashes <> NEW.input_hashes)
                )
        ) THEN
            RAISE EXCEPTION 'stage_state_retry_keeps_key_and_inputs' USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF OLD.state || '>' || NEW.state NOT IN (
        'pending>running', 'running>succeeded', 'running>failed', 'failed>rolled_back'
    )
        OR (NEW.run_id, NEW.stage, NEW.attempt, NEW.idempotency_key, NEW.input_hashes, NEW.opened_at)
        IS DISTINCT FROM (OLD.run_id, OLD.stage, OLD.attempt, OLD.idempotency_key, OLD.input_hashes, OLD.opened_at)
    THEN
        RAISE EXCEPTION 'stage_state_move_is_legal' USING ERRCODE = 'restrict_violation';
    END IF;
    -- A move that nobody can read of did not happen as it should (PCS-15).
    IF NOT EXISTS (
        SELECT 1 FROM stage_audit AS a
        WHERE
            a.run_id = NEW.run_id AND a.stage = NEW.stage AND a.attempt = NEW.attempt
            AND a.kind = 'transition' AND a.event = OLD.state || '>' || NEW.state
    ) THEN
        RAISE EXCEPTION 'stage_state_move_is_audited' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER stage_state_is_guarded BEFORE INSERT OR UPDATE OR DELETE ON stage_state
FOR EACH ROW EXECUTE FUNCTION stage_state_guard()
-- ;
CREATE TRIGGER stage_state_is_not_truncated BEFORE TRUNCATE ON stage_state
FOR EACH STATEMENT EXECUTE FUNCTION stage_state_guard()
