-- The first day that the deployment has partitions of (DAG-12): the earliest row. Each row is an earlier day than before.
CREATE TABLE partition_first_days (
    first_day text NOT NULL,
    decided_at text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT partition_first_days_one_row_per_day PRIMARY KEY (first_day),
    CONSTRAINT partition_first_days_day_is_a_day CHECK (first_day GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'),
    CONSTRAINT partition_first_days_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000)
) STRICT
-- ;
-- Units of days that are no partition any more would never get a run.
CREATE TRIGGER partition_first_days_are_not_changed BEFORE UPDATE ON partition_first_days
BEGIN
    SELECT RAISE(ABORT, 'partition_first_days_are_kept');
END
-- ;
CREATE TRIGGER partition_first_days_are_not_deleted BEFORE DELETE ON partition_first_days
BEGIN
    SELECT RAISE(ABORT, 'partition_first_days_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER partition_first_days_are_not_replaced BEFORE INSERT ON partition_first_days
WHEN EXISTS (SELECT 1 FROM partition_first_days AS r WHERE r.first_day = NEW.first_day)
BEGIN
    SELECT RAISE(ABORT, 'partition_first_days_are_kept');
END
