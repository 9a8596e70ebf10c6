-- What the kernel and servers said of a machine's clock: what the clock is judged by, and its stability (PCS-10, PCS-17).
CREATE TABLE clock_readings (
    -- The order of taking: times cannot give it, because they are the clock's that is in question.
    reading_id integer PRIMARY KEY AUTOINCREMENT,
    -- Which clock: the boot id of its kernel.
    clock_id text NOT NULL,
    at text NOT NULL,
    -- `kernel`, or `date:` and a server's host.
    source text NOT NULL,
    -- True time minus the clock's, which lies within offset +- uncertainty.
    offset_seconds real,
    uncertainty_seconds real,
    -- The source's own word, before any rule.
    state text NOT NULL,
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
) STRICT
-- ;
CREATE INDEX clock_readings_by_clock ON clock_readings (clock_id, reading_id)
-- ;
CREATE INDEX clock_readings_by_time ON clock_readings (at)
-- ;
CREATE TRIGGER clock_readings_are_not_changed BEFORE UPDATE ON clock_readings
BEGIN
    SELECT RAISE(ABORT, 'clock_readings_are_append_only');
END
-- ;
-- Retention may take old readings; the last 30 days are what the clock is judged by and what its stability is told from.
CREATE TRIGGER clock_readings_are_kept_for_a_month BEFORE DELETE ON clock_readings
WHEN OLD.at > (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(r.at), '-30 days') FROM clock_readings AS r)
BEGIN
    SELECT RAISE(ABORT, 'clock_readings_are_kept_for_a_month');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER clock_readings_are_not_replaced BEFORE INSERT ON clock_readings
WHEN EXISTS (SELECT 1 FROM clock_readings AS r WHERE r.reading_id = NEW.reading_id)
BEGIN
    SELECT RAISE(ABORT, 'clock_readings_are_append_only');
END
