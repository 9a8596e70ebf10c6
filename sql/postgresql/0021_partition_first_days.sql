-- The first day that the deployment has partitions of (DAG-12): the earliest row. Each row is an earlier day than before.
CREATE TABLE partition_first_days (
    first_day text COLLATE "C" NOT NULL,
    decided_at timestamptz NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT partition_first_days_one_row_per_day PRIMARY KEY (first_day),
    CONSTRAINT partition_first_days_day_is_a_day CHECK (first_day ~ '^\d{4}-\d{2}-\d{2}$'),
    CONSTRAINT partition_first_days_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000)
)
-- ;
-- Units of days that are no partition any more would never get a run.
CREATE TRIGGER partition_first_days_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON partition_first_days
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('partition_first_days_are_kept')
