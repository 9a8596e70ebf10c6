-- Batch statements about messages for SQLite: a batch is one JSON parameter, read by json_each.

-- name: record
-- WHERE TRUE: without it the parser takes ON CONFLICT for a join condition.
INSERT INTO nodd_wal_deliveries (
    message_id, queue, receipt_handle, receive_count, first_received_at, received_at, landing_sha256,
    sns_message_id, topic_arn, state, signature
)
SELECT
    value ->> '$.message_id', value ->> '$.queue', value ->> '$.receipt_handle', value ->> '$.receives', :at, :at,
    value ->> '$.landing_sha256', value ->> '$.sns_message_id', value ->> '$.topic_arn', value ->> '$.state',
    value ->> '$.signature'
FROM json_each(:batch)
WHERE TRUE
ON CONFLICT (message_id) DO UPDATE SET
    queue = excluded.queue,
    receipt_handle = excluded.receipt_handle,
    receive_count = nodd_wal_deliveries.receive_count + excluded.receive_count,
    received_at = excluded.received_at,
    landing_sha256 = excluded.landing_sha256,
    state = excluded.state,
    signature = excluded.signature,
    settled_at = NULL;

-- name: record_units
INSERT INTO nodd_wal_delivery_units (message_id, wal_id)
SELECT value ->> '$.message_id', value ->> '$.wal_id'
FROM json_each(:batch)
WHERE TRUE
ON CONFLICT (message_id, wal_id) DO NOTHING;

-- name: record_ignored
-- What is there is passed over by the condition, because the table refuses it before ON CONFLICT could.
INSERT INTO ignored_records (message_id, record_index, reason, dataset, bucket, object_key, records, received_at)
SELECT
    value ->> '$.message_id', value ->> '$.record_index', value ->> '$.reason', value ->> '$.dataset',
    value ->> '$.bucket', value ->> '$.key', value ->> '$.records', :at
FROM json_each(:batch)
WHERE NOT EXISTS (
    SELECT 1 FROM ignored_records AS known
    WHERE known.message_id = value ->> '$.message_id' AND known.record_index = value ->> '$.record_index'
);

-- name: keep_bodies
INSERT INTO rejected_bodies (message_id, body, received_at)
SELECT value ->> '$.message_id', value ->> '$.body', :at
FROM json_each(:batch)
WHERE NOT EXISTS (SELECT 1 FROM rejected_bodies AS known WHERE known.message_id = value ->> '$.message_id');

-- name: reject
-- What was found first stays: a message that comes again is rejected for the same, or by a newer release.
INSERT INTO rejected_messages (message_id, record_index, reason_code, detail, records, received_at)
SELECT
    value ->> '$.message_id', value ->> '$.record_index', value ->> '$.reason_code', value ->> '$.detail',
    value ->> '$.records', :at
FROM json_each(:batch)
WHERE NOT EXISTS (
    SELECT 1 FROM rejected_messages AS known
    WHERE known.message_id = value ->> '$.message_id' AND known.record_index = value ->> '$.record_index'
);

-- name: reject_objects
INSERT INTO rejected_objects (dataset, object_uri, reason_code, detail, found_at)
SELECT value ->> '$.dataset', value ->> '$.object_uri', value ->> '$.reason_code', value ->> '$.detail', :at
FROM json_each(:batch)
WHERE NOT EXISTS (
    SELECT 1 FROM rejected_objects AS known
    WHERE known.dataset = value ->> '$.dataset' AND known.object_uri = value ->> '$.object_uri'
);

-- name: mark_rejected
UPDATE nodd_wal_deliveries SET state = 'rejected', settled_at = NULL
WHERE message_id IN (SELECT value FROM json_each(:message_ids));

-- name: mark_deleted
UPDATE nodd_wal_deliveries SET state = 'deleted', settled_at = :at
WHERE message_id IN (SELECT value FROM json_each(:message_ids));

-- name: mark_acknowledged
-- Only under the receipt that was deleted. The first condition is what finds the rows.
UPDATE nodd_wal_deliveries SET state = 'deleted', settled_at = :at
WHERE
    message_id IN (SELECT value ->> '$.message_id' FROM json_each(:batch))
    AND (message_id, receipt_handle) IN (
        SELECT
            value ->> '$.message_id',
            value ->> '$.receipt_handle'
        FROM json_each(:batch)
    );

-- name: dead_letter
-- One that waits on the dead-letter queue itself for its units, or has been deleted from it, is left as it is.
UPDATE nodd_wal_deliveries SET state = 'dead_lettered', settled_at = :at
WHERE
    message_id IN (SELECT value FROM json_each(:message_ids))
    AND state <> 'dead_lettered' AND (queue <> :queue OR state = 'rejected');

-- name: states
SELECT message_id, state FROM nodd_wal_deliveries
WHERE message_id IN (SELECT value FROM json_each(:message_ids));

-- name: verified
SELECT message_id FROM nodd_wal_deliveries
WHERE message_id IN (SELECT value FROM json_each(:message_ids)) AND signature = 'verified';

-- name: taken_in
SELECT message_id FROM nodd_wal_deliveries
WHERE message_id IN (SELECT value FROM json_each(:message_ids)) AND signature IS DISTINCT FROM 'invalid';

-- name: due_for_backoff
SELECT delivery.message_id, delivery.queue, delivery.receipt_handle, max(record.next_attempt_at) AS next_attempt_at
FROM nodd_wal_records AS record
INNER JOIN nodd_wal_delivery_units AS unit ON record.wal_id = unit.wal_id
INNER JOIN nodd_wal_deliveries AS delivery ON unit.message_id = delivery.message_id
WHERE
    record.wal_id IN (SELECT value FROM json_each(:wal_ids))
    AND record.status = 'failed' AND record.next_attempt_at IS NOT NULL AND delivery.state = 'in_flight'
GROUP BY delivery.message_id, delivery.queue, delivery.receipt_handle
ORDER BY delivery.message_id;
