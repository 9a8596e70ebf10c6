-- What the kernel and servers said of a machine's clock: what the clock is judged by, and its stability (PCS-10, PCS-17).
CREATE TABLE clock_readings (
    -- The order of taking: times cannot give it, because they are the clock's that is in question.
    reading_id bigint GENERATED ALWAYS AS IDENTITY,
    -- Which clock: the boot id of its kernel.
    clock_id text NOT NULL,
    at timestamptz NOT NULL,
    -- `kernel`, or `date:` and a server's host.
    source text NOT NULL,
    -- True time minus the clock's, which lies within offset +- uncertainty.
    offset_seconds double precision,
    uncertainty_seconds double precision,
    -- The source's own word, before any rule.
    state text NOT NULL,
    CONSTRAINT clock_readings_one_row_per_reading PRIMARY KEY (reading_id),
    CONSTRAINT clock_readings_clock_is_named CHECK (length(clock_id) BETWEEN 1 AND 100),
    CONSTRAINT clock_readings_source_is_named CHECK (length(source) BETWEEN 1 AND 300),
    CONSTRAINT clock_readings_state_is_known CHECK (state IN ('locked', 'unlocked', 'unknown')),
    -- An offset without its uncertainty proves nothing.
    CONSTRAINT clock_readings_offset_has_bounds CHECK ((offset_seconds IS NULL) = (uncertainty_seconds IS NULL)),
    -- No clock is three centuries off; what is beyond is no number (infinity, NaN).
    CONSTRAINT clock_readings_offset_is_finite
    CHECK (offset_seconds BETWEEN -1e10 AND 1e10 AND uncertainty_seconds BETWEEN 0 AND 1e10),
    -- Who keeps a clock knows by how much it is wrong.
    CONSTRAINT clock_readings_locked_has_offset CHECK (state <> 'locked' OR offset_seconds IS NOT NULL)
)
-- ;
CREATE INDEX clock_readings_by_clock ON clock_readings (clock_id, reading_id)
-- ;
CREATE INDEX clock_readings_by_time ON clock_readings (at)
-- ;
CREATE TRIGGER clock_readings_are_append_only BEFORE UPDATE OR TRUNCATE ON clock_readings
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('clock_readings_are_append_only')
-- ;
-- Retention may take old readings; the last 30 days are what the clock is judged by and what its stability is told from.
CREATE FUNCTION clock_readings_keep_a_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.at > (SELECT max(r.at) FROM clock_readings AS r) - interval '30 days' THEN
        RAISE EXCEPTION 'clock_readings_are_kept_for_a_month' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
END
$$
-- ;
CREATE TRIGGER clock_readings_are_kept_for_a_month BEFORE DELETE ON clock_readings
FOR EACH ROW EXECUTE FUNCTION clock_readings_keep_a_month()
