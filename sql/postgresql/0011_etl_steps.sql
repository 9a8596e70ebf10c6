-- Steps: how each intent ended, what went through it and what that took; and which lineage batch tells it (IEN-11).
CREATE TABLE etl_steps (
    wal_id bigint NOT NULL,
    status text NOT NULL,
    ended_at timestamptz NOT NULL,
    -- What was measured; null where nobody could.
    seconds double precision,
    cpu_seconds double precision,
    rows_in bigint,
    rows_out bigint,
    bytes_in bigint,
    bytes_out bigint,
    energy_kwh double precision,
    carbon_gco2e double precision,
    -- What measured the energy.
    measured_by text,
    cost_usd double precision,
    -- Kind of the error; its text may name what is not for everybody.
    error text,
    -- OpenLineage batch that tells it; null until it is told.
    batch_id text,
    -- A failed intent may end once more, when a replay carries it out.
    CONSTRAINT etl_steps_one_row_per_end PRIMARY KEY (wal_id, status),
    CONSTRAINT etl_steps_have_an_intent FOREIGN KEY (wal_id) REFERENCES etl_wal (wal_id),
    CONSTRAINT etl_steps_have_ended CHECK (status IN ('APPLIED', 'SKIPPED', 'FAILED')),
    CONSTRAINT etl_steps_measures_are_not_negative CHECK (
        seconds >= 0 AND cpu_seconds >= 0 AND rows_in >= 0 AND rows_out >= 0 AND bytes_in >= 0 AND bytes_out >= 0
        AND energy_kwh >= 0 AND carbon_gco2e >= 0 AND cost_usd >= 0
    ),
    -- A figure of energy without its method can be compared with nothing.
    CONSTRAINT etl_steps_energy_has_a_method CHECK (
        (energy_kwh IS NULL) = (measured_by IS NULL) AND (carbon_gco2e IS NULL) = (measured_by IS NULL)
    ),
    CONSTRAINT etl_steps_error_is_of_a_failure CHECK (error IS NULL OR status = 'FAILED'),
    CONSTRAINT etl_steps_error_is_bounded CHECK (length(error) <= 200),
    CONSTRAINT etl_steps_are_told_in_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id)
)
-- ;
CREATE INDEX etl_steps_untold ON etl_steps (wal_id) WHERE batch_id IS NULL
-- ;
-- A step is measured once and told once.
CREATE FUNCTION etl_steps_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'etl_steps_are_kept' USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.batch_id IS NOT NULL
        OR (to_jsonb(NEW) - 'batch_id') IS DISTINCT FROM (to_jsonb(OLD) - 'batch_id')
    THEN
        RAISE EXCEPTION 'etl_steps_are_only_told' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER etl_steps_are_guarded BEFORE UPDATE OR DELETE ON etl_steps
FOR EACH ROW EXECUTE FUNCTION etl_steps_guard()
-- ;
CREATE TRIGGER etl_steps_are_not_truncated BEFORE TRUNCATE ON etl_steps
FOR EACH STATEMENT EXECUTE FUNCTION etl_steps_guard()
