-- What gives no unit costs little, whatever a sender puts into it: a message's body is kept once, the rows of one
-- message are few, and every text has a bound (SEC-08).

-- The bodies of messages of which a record was rejected.
CREATE TABLE rejected_bodies (
    message_id text NOT NULL,
    body text NOT NULL,
    received_at text NOT NULL,
    CONSTRAINT rejected_bodies_one_row_per_message PRIMARY KEY (message_id),
    CONSTRAINT rejected_bodies_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    -- SQS carries 1 MiB.
    CONSTRAINT rejected_bodies_body_is_bounded CHECK (length(body) <= 1048576)
) STRICT
-- ;
INSERT INTO rejected_bodies (message_id, body, received_at)
SELECT message_id, substr(max(body), 1, 1048576), max(received_at) FROM rejected_messages GROUP BY message_id
-- ;
ALTER TABLE rejected_messages RENAME TO rejected_messages_with_bodies
-- ;
CREATE TABLE rejected_messages (
    message_id text NOT NULL,
    -- The first of the records that the row is of.
    record_index integer NOT NULL,
    reason_code text NOT NULL,
    detail text NOT NULL,
    -- How many records of the message were rejected for the same reason.
    records integer NOT NULL,
    received_at text NOT NULL,
    CONSTRAINT rejected_messages_one_row_per_record PRIMARY KEY (message_id, record_index),
    CONSTRAINT rejected_messages_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    CONSTRAINT rejected_messages_reason_is_short CHECK (length(reason_code) BETWEEN 1 AND 60),
    CONSTRAINT rejected_messages_detail_is_bounded CHECK (length(detail) <= 500),
    CONSTRAINT rejected_messages_records_are_counted CHECK (records >= 1)
) STRICT
-- ;
INSERT INTO rejected_messages (message_id, record_index, reason_code, detail, records, received_at)
SELECT message_id, record_index, reason_code, detail, 1, received_at FROM rejected_messages_with_bodies
-- ;
DROP TABLE rejected_messages_with_bodies
-- ;
-- Objects of a listing that the database refused, each with its words.
CREATE TABLE rejected_objects (
    dataset text NOT NULL,
    object_uri text NOT NULL,
    reason_code text NOT NULL,
    detail text NOT NULL,
    found_at text NOT NULL,
    CONSTRAINT rejected_objects_one_row_per_object PRIMARY KEY (dataset, object_uri),
    CONSTRAINT rejected_objects_uri_is_bounded CHECK (length(object_uri) <= 1400),
    CONSTRAINT rejected_objects_reason_is_short CHECK (length(reason_code) BETWEEN 1 AND 60),
    CONSTRAINT rejected_objects_detail_is_bounded CHECK (length(detail) <= 500)
) STRICT
-- ;
-- A table's CHECK cannot be added later in SQLite.
CREATE TRIGGER nodd_wal_records_texts_are_bounded BEFORE INSERT ON nodd_wal_records
WHEN
    max(
        length(NEW.dataset), length(NEW.provider), length(NEW.queue), length(NEW.schema_version),
        coalesce(length(NEW.object_version), 0), coalesce(length(NEW.sequencer), 0),
        coalesce(length(NEW.sqs_message_id), 0), coalesce(length(NEW.sns_message_id), 0),
        coalesce(length(NEW.topic_arn), 0), coalesce(length(NEW.subject), 0)
    ) > 320 OR length(NEW.object_uri) > 1400
BEGIN
    SELECT RAISE(ABORT, 'nodd_wal_records_texts_are_bounded');
END
-- ;
CREATE TRIGGER nodd_wal_deliveries_texts_are_bounded BEFORE INSERT ON nodd_wal_deliveries
WHEN
    max(
        length(NEW.message_id), length(NEW.queue), length(NEW.landing_sha256),
        coalesce(length(NEW.sns_message_id), 0), coalesce(length(NEW.topic_arn), 0)
    ) > 320 OR length(NEW.receipt_handle) > 4096
BEGIN
    SELECT RAISE(ABORT, 'nodd_wal_deliveries_texts_are_bounded');
END
-- ;
CREATE TRIGGER rejected_bodies_are_not_changed BEFORE UPDATE ON rejected_bodies
BEGIN
    SELECT RAISE(ABORT, 'rejected_bodies_are_kept');
END
-- ;
CREATE TRIGGER rejected_bodies_are_not_deleted BEFORE DELETE ON rejected_bodies
BEGIN
    SELECT RAISE(ABORT, 'rejected_bodies_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER rejected_bodies_are_not_replaced BEFORE INSERT ON rejected_bodies
WHEN EXISTS (SELECT 1 FROM rejected_bodies AS r WHERE r.message_id = NEW.message_id)
BEGIN
    SELECT RAISE(ABORT, 'rejected_bodies_are_kept');
END
-- ;
CREATE TRIGGER rejected_objects_are_not_changed BEFORE UPDATE ON rejected_objects
BEGIN
    SELECT RAISE(ABORT, 'rejected_objects_are_kept');
END
-- ;
CREATE TRIGGER rejected_objects_are_not_deleted BEFORE DELETE ON rejected_objects
BEGIN
    SELECT RAISE(ABORT, 'rejected_objects_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER rejected_objects_are_not_replaced BEFORE INSERT ON rejected_objects
WHEN EXISTS (SELECT 1 FROM rejected_objects AS r WHERE r.dataset = NEW.dataset AND r.object_uri = NEW.object_uri)
BEGIN
    SELECT RAISE(ABORT, 'rejected_objects_are_kept');
END
