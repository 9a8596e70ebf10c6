-- Records of a message that were understood and give no unit, each with its reason (OPR-19).
CREATE TABLE ignored_records (
    message_id text COLLATE "C" NOT NULL,
    record_index integer NOT NULL,
    reason text NOT NULL,
    -- NULL where it is of no one dataset: a test event, a bucket that several datasets share.
    dataset text,
    bucket text,
    -- NULL for what names no object, and for the row that counts what is beyond a message's bound.
    object_key text,
    records integer NOT NULL,
    received_at timestamptz NOT NULL,
    -- A message that comes again says the same.
    CONSTRAINT ignored_records_one_row_per_record PRIMARY KEY (message_id, record_index),
    CONSTRAINT ignored_records_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    CONSTRAINT ignored_records_index_counts_from_zero CHECK (record_index >= 0),
    CONSTRAINT ignored_records_reason_is_short CHECK (length(reason) BETWEEN 1 AND 60),
    -- S3's bounds of both names, in characters.
    CONSTRAINT ignored_records_names_are_bounded CHECK (length(bucket) <= 255 AND length(object_key) <= 1024),
    -- A count over several records is of no one object.
    CONSTRAINT ignored_records_are_counted CHECK (records >= 1 AND (records = 1 OR object_key IS NULL))
)
-- ;
CREATE INDEX ignored_records_by_time ON ignored_records (received_at)
-- ;
CREATE TRIGGER ignored_records_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON ignored_records
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('ignored_records_are_kept')
