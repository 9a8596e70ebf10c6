-- What gives no unit costs little, whatever a sender puts into it: a message's body is kept once, the rows of one
-- message are few, and every text has a bound (SEC-08).

-- The bodies of messages of which a record was rejected.
CREATE TABLE rejected_bodies (
    message_id text COLLATE "C" NOT NULL,
    body text NOT NULL,
    received_at timestamptz NOT NULL,
    CONSTRAINT rejected_bodies_one_row_per_message PRIMARY KEY (message_id),
    CONSTRAINT rejected_bodies_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    -- SQS carries 1 MiB.
    CONSTRAINT rejected_bodies_body_is_bounded CHECK (length(body) <= 1048576)
)
-- ;
INSERT INTO rejected_bodies (message_id, body, received_at)
SELECT message_id, left(max(body), 1048576), max(received_at) FROM rejected_messages GROUP BY message_id
-- ;
ALTER TABLE rejected_messages DROP COLUMN body
-- ;
-- How many records of the message were rejected for the same reason; record_index is the first of them.
ALTER TABLE rejected_messages ADD COLUMN records integer NOT NULL DEFAULT 1
-- ;
ALTER TABLE rejected_messages ALTER COLUMN records DROP DEFAULT
-- ;
ALTER TABLE rejected_messages
ADD CONSTRAINT rejected_messages_reason_is_short CHECK (length(reason_code) BETWEEN 1 AND 60),
ADD CONSTRAINT rejected_messages_records_are_counted CHECK (records >= 1)
-- ;
-- Objects of a listing that the database refused, each with its words.
CREATE TABLE rejected_objects (
    dataset text NOT NULL,
    object_uri text NOT NULL,
    reason_code text NOT NULL,
    detail text NOT NULL,
    found_at timestamptz NOT NULL,
    CONSTRAINT rejected_objects_one_row_per_object PRIMARY KEY (dataset, object_uri),
    CONSTRAINT rejected_objects_uri_is_bounded CHECK (length(object_uri) <= 1400),
    CONSTRAINT rejected_objects_reason_is_short CHECK (length(reason_code) BETWEEN 1 AND 60),
    CONSTRAINT rejected_objects_detail_is_bounded CHECK (length(detail) <= 500)
)
-- ;
-- A trigger, as in SQLite, whose tables take no further CHECK.
CREATE TRIGGER nodd_wal_records_texts_are_bounded BEFORE INSERT ON nodd_wal_records
FOR EACH ROW WHEN (
    greatest(
        length(NEW.dataset), length(NEW.provider), length(NEW.queue), length(NEW.schema_version),
        length(NEW.object_version), length(NEW.sequencer), length(NEW.sqs_message_id), length(NEW.sns_message_id),
        length(NEW.topic_arn), length(NEW.subject)
    ) > 320 OR length(NEW.object_uri) > 1400
)
EXECUTE FUNCTION nodd_wal_refuse_statement('nodd_wal_records_texts_are_bounded')
-- ;
CREATE TRIGGER nodd_wal_deliveries_texts_are_bounded BEFORE INSERT ON nodd_wal_deliveries
FOR EACH ROW WHEN (
    greatest(
        length(NEW.message_id), length(NEW.queue), length(NEW.landing_sha256), length(NEW.sns_message_id),
        length(NEW.topic_arn)
    ) > 320 OR length(NEW.receipt_handle) > 4096
)
EXECUTE FUNCTION nodd_wal_refuse_statement('nodd_wal_deliveries_texts_are_bounded')
-- ;
CREATE TRIGGER rejected_bodies_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON rejected_bodies
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('rejected_bodies_are_kept')
-- ;
CREATE TRIGGER rejected_objects_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON rejected_objects
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('rejected_objects_are_kept')
