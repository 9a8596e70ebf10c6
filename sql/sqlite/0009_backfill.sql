-- Backfills: which days of which datasets a person wants listed and ingested, and how far that is (DAG-05).
CREATE TABLE backfills (
    backfill_id text NOT NULL,
    first_day text NOT NULL,
    last_day text NOT NULL,
    state text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    change_ref text,
    started_at text NOT NULL,
    ended_at text,
    CONSTRAINT backfills_one_row_per_backfill PRIMARY KEY (backfill_id),
    -- A window that ends before it begins has no day, so it would never finish.
    CONSTRAINT backfills_window_has_a_day CHECK (last_day >= first_day),
    -- Days that are no partition would be asked for and never come.
    CONSTRAINT backfills_days_are_days CHECK (
        first_day GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'
        AND last_day GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'
    ),
    -- A backfill in a state that nobody asks for would stand still unseen.
    CONSTRAINT backfills_state_is_known CHECK (state IN ('running', 'cancelled', 'finished')),
    -- Weeks of load on a bucket and a catalog must be somebody's decision.
    CONSTRAINT backfills_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    -- One that has ended without a time, or the reverse, would count both as running and as over.
    CONSTRAINT backfills_end_has_a_time CHECK ((state = 'running') = (ended_at IS NULL))
) STRICT
-- ;
CREATE INDEX backfills_running ON backfills (started_at) WHERE state = 'running'
-- ;
-- What is over stays as it was decided and as it ended.
CREATE TRIGGER backfills_only_end BEFORE UPDATE ON backfills
WHEN
    OLD.state <> 'running'
    OR (NEW.backfill_id, NEW.first_day, NEW.last_day, NEW.actor, NEW.reason, NEW.change_ref, NEW.started_at)
    IS NOT
    (OLD.backfill_id, OLD.first_day, OLD.last_day, OLD.actor, OLD.reason, OLD.change_ref, OLD.started_at)
BEGIN
    SELECT RAISE(ABORT, 'backfills_only_end');
END
-- ;
CREATE TRIGGER backfills_are_not_deleted BEFORE DELETE ON backfills
BEGIN
    SELECT RAISE(ABORT, 'backfills_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER backfills_are_not_replaced BEFORE INSERT ON backfills
WHEN EXISTS (SELECT 1 FROM backfills AS r WHERE r.backfill_id = NEW.backfill_id)
BEGIN
    SELECT RAISE(ABORT, 'backfills_are_kept');
END
-- ;
-- One day of one dataset. Objects that were known before are `listed - created - readmitted`.
CREATE TABLE backfill_days (
    backfill_id text NOT NULL,
    dataset text NOT NULL,
    day text NOT NULL,
    state text NOT NULL,
    -- Runs that were asked for; the next one needs another name.
    requests integer NOT NULL,
    requested_at text,
    listed_at text,
    -- Objects of the listing that is going on or has ended.
    listed integer NOT NULL,
    -- Records that this backfill made and let in again, over all its listings of the day.
    created integer NOT NULL,
    readmitted integer NOT NULL,
    CONSTRAINT backfill_days_one_row_per_day PRIMARY KEY (backfill_id, dataset, day),
    CONSTRAINT backfill_days_backfill_is_known FOREIGN KEY (backfill_id) REFERENCES backfills (backfill_id),
    CONSTRAINT backfill_days_day_is_a_day CHECK (day GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'),
    -- A day in a state that nobody asks for would hold its backfill open for ever.
    CONSTRAINT backfill_days_state_is_known CHECK (state IN ('waiting', 'requested', 'listed')),
    -- A day that counts as listed without ever having been asked for would hide what is missing.
    CONSTRAINT backfill_days_states_have_their_times CHECK (
        (state = 'waiting') = (requested_at IS NULL) AND (state = 'waiting') = (requests = 0)
        AND (state = 'listed') = (listed_at IS NOT NULL)
    ),
    CONSTRAINT backfill_days_counts_are_counts
    CHECK (requests >= 0 AND listed >= 0 AND created >= 0 AND readmitted >= 0)
) STRICT
-- ;
CREATE INDEX backfill_days_open ON backfill_days (backfill_id, day, dataset) WHERE state <> 'listed'
-- ;
-- A day that is listed is not listed again by the same backfill, and never goes back to waiting.
CREATE TRIGGER backfill_days_only_go_on BEFORE UPDATE ON backfill_days
WHEN
    OLD.state = 'listed' OR NEW.state = 'waiting'
    OR (OLD.state = 'waiting' AND NEW.state = 'listed')
    OR NEW.requests < OLD.requests OR NEW.created < OLD.created OR NEW.readmitted < OLD.readmitted
    OR (NEW.backfill_id, NEW.dataset, NEW.day) IS NOT (OLD.backfill_id, OLD.dataset, OLD.day)
BEGIN
    SELECT RAISE(ABORT, 'backfill_days_only_go_on');
END
-- ;
CREATE TRIGGER backfill_days_are_not_deleted BEFORE DELETE ON backfill_days
BEGIN
    SELECT RAISE(ABORT, 'backfill_days_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER backfill_days_are_not_replaced BEFORE INSERT ON backfill_days
WHEN EXISTS (
    SELECT 1 FROM backfill_days AS r
    WHERE r.backfill_id = NEW.backfill_id AND r.dataset = NEW.dataset AND r.day = NEW.day
)
BEGIN
    SELECT RAISE(ABORT, 'backfill_days_are_kept');
END
