-- Steps: how each intent ended, what went through it and what that took; and which lineage batch tells it (IEN-11).
CREATE TABLE etl_steps (
    wal_id integer NOT NULL,
    status text NOT NULL,
    ended_at text NOT NULL,
    -- What was measured; null where nobody could.
    seconds real,
    cpu_seconds real,
    rows_in integer,
    rows_out integer,
    bytes_in integer,
    bytes_out integer,
    energy_kwh real,
    carbon_gco2e real,
    -- What measured the energy.
    measured_by text,
    cost_usd real,
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
) STRICT, WITHOUT ROWID
-- ;
CREATE INDEX etl_steps_untold ON etl_steps (wal_id) WHERE batch_id IS NULL
-- ;
-- A step is measured once and told once.
CREATE TRIGGER etl_steps_are_only_told BEFORE UPDATE ON etl_steps
WHEN
    OLD.batch_id IS NOT NULL
    OR (
        NEW.wal_id, NEW.status, NEW.ended_at, NEW.seconds, NEW.cpu_seconds, NEW.rows_in, NEW.rows_out, NEW.bytes_in,
        NEW.bytes_out, NEW.energy_kwh, NEW.carbon_gco2e, NEW.measured_by, NEW.cost_usd, NEW.error
    )
    IS NOT
    (
        OLD.wal_id, OLD.status, OLD.ended_at, OLD.seconds, OLD.cpu_seconds, OLD.rows_in, OLD.rows_out, OLD.bytes_in,
        OLD.bytes_out, OLD.energy_kwh, OLD.carbon_gco2e, OLD.measured_by, OLD.cost_usd, OLD.error
    )
BEGIN
    SELECT RAISE(ABORT, 'etl_steps_are_only_told');
END
-- ;
CREATE TRIGGER etl_steps_are_not_deleted BEFORE DELETE ON etl_steps
BEGIN
    SELECT RAISE(ABORT, 'etl_steps_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER etl_steps_are_not_replaced BEFORE INSERT ON etl_steps
WHEN EXISTS (SELECT 1 FROM etl_steps AS r WHERE r.wal_id = NEW.wal_id AND r.status = NEW.status)
BEGIN
    SELECT RAISE(ABORT, 'etl_steps_are_kept');
END
