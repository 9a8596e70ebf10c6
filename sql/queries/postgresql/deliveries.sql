-- Batch statements about messages for PostgreSQL: a batch is one JSON parameter, read by jsonb_to_recordset.
-- Rows are written or locked in the order of their key, so that two batches that overlap cannot deadlock: every run and
-- every tick acknowledges.

-- name: record
INSERT INTO nodd_wal_deliveries (
    message_id, queue, receipt_handle, receive_count, first_received_at, received_at, landing_sha256,
    sns_message_id, topic_arn, state, signature
)
SELECT
    message_id, queue, receipt_handle, receives, CAST(:at AS timestamptz), CAST(:at AS timestamptz), landing_sha256,
    sns_message_id, topic_arn, state, signature
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS delivery (
    message_id text, queue text, receipt_handle text, receives integer, landing_sha256 text, sns_message_id text,
    topic_arn text, state text, signature text
)
ORDER BY message_id COLLATE "C"
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
SELECT message_id, wal_id
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS unit (message_id text, wal_id text)
ORDER BY message_id COLLATE "C", wal_id COLLATE "C"
ON CONFLICT (message_id, wal_id) DO NOTHING;

-- name: record_ignored
INSERT INTO ignored_records (message_id, record_index, reason, dataset, bucket, object_key, records, received_at)
SELECT message_id, record_index, reason, dataset, bucket, key, records, CAST(:at AS timestamptz)
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS ignored (
    message_id text, record_index integer, reason text, dataset text, bucket text, key text, records integer
)
ORDER BY message_id COLLATE "C", record_index
ON CONFLICT (message_id, record_index) DO NOTHING;

-- name: keep_bodies
INSERT INTO rejected_bodies (message_id, body, received_at)
SELECT message_id, body, CAST(:at AS timestamptz)
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS kept (message_id text, body text)
ORDER BY message_id COLLATE "C"
ON CONFLICT (message_id) DO NOTHING;

-- name: reject
-- What was found first stays: a message that comes again is rejected for the same, or by a newer release.
INSERT INTO rejected_messages (message_id, record_index, reason_code, detail, records, received_at)
SELECT message_id, record_index, reason_code, detail, records, CAST(:at AS timestamptz)
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS rejected (
    message_id text, record_index integer, reason_code text, detail text, records integer
)
ORDER BY message_id COLLATE "C", record_index
ON CONFLICT (message_id, record_index) DO NOTHING;

-- name: reject_objects
INSERT INTO rejected_objects (dataset, object_uri, reason_code, detail, found_at)
SELECT dataset, object_uri, reason_code, detail, CAST(:at AS timestamptz)
FROM jsonb_to_recordset(CAST(:batch AS jsonb)) AS rejected (
    dataset text, object_uri text, reason_code text, detail text
)
ORDER BY dataset COLLATE "C", object_uri COLLATE "C"
ON CONFLICT (dataset, object_uri) DO NOTHING;

-- name: mark_rejected
WITH known AS (
    SELECT message_id FROM nodd_wal_deliveries
    WHERE message_id IN (SELECT jsonb_array_elements_text(CAST(:message_ids AS jsonb)))
    ORDER BY message_id
    FOR NO KEY UPDATE
)

UPDATE nodd_wal_deliveries AS delivery SET state = 'rejected', settled_at = NULL
FROM known
WHERE delivery.message_id = known.message_id;

-- name: mark_deleted
WITH known AS (
    SELECT message_id FROM nodd_wal_deliveries
    WHERE message_id IN (SELECT jsonb_array_elements_text(CAST(:message_ids AS jsonb)))
    ORDER BY message_id
    FOR NO KEY UPDATE
)

UPDATE nodd_wal_deliveries AS delivery SET state = 'deleted', settled_at = :at
FROM known
WHERE delivery.message_id = known.message_id;

-- name: mark_acknowledged
-- Only under the receipt that was deleted; looked at again once a receiver's transaction that was waited for has ended.
WITH known AS (
    SELECT delivery.message_id
    FROM nodd_wal_deliveries AS delivery
    INNER JOIN jsonb_to_recordset(CAST(:batch AS jsonb)) AS due (message_id text, receipt_handle text)
        ON delivery.message_id = due.message_id AND delivery.receipt_handle = due.receipt_handle
    ORDER BY delivery.message_id
    FOR NO KEY UPDATE OF delivery
)

UPDATE nodd_wal_deliveries AS delivery SET state = 'deleted', settled_at = :at
FROM known
WHERE delivery.message_id = known.message_id;

-- name: dead_letter
-- One that waits on the dead-letter queue itself for its units, or has been deleted from it, is left as it is.
WITH known AS (
    SELECT message_id FROM nodd_wal_deliveries
    WHERE
        message_id IN (SELECT jsonb_array_elements_text(CAST(:message_ids AS jsonb)))
        AND state <> 'dead_lettered' AND (queue <> :queue OR state = 'rejected')
    ORDER BY message_id
    FOR NO KEY UPDATE
)

UPDATE nodd_wal_deliveries AS delivery SET state = 'dead_lettered', settled_at = :at
FROM known
WHERE delivery.message_id = known.message_id;

-- name: states
SELECT message_id, state FROM nodd_wal_deliveries
WHERE message_id IN (SELECT jsonb_array_elements_text(CAST(:message_ids AS jsonb)));

-- name: verified
SELECT message_id FROM nodd_wal_deliveries
WHERE message_id IN (SELECT jsonb_array_elements_text(CAST(:message_ids AS jsonb))) AND signature = 'verified';

-- name: taken_in
SELECT message_id FROM nodd_wal_deliveries
WHERE message_id IN (SELECT jsonb_array_elements_text(CAST(:message_ids AS jsonb))) AND signature IS DISTINCT FROM 'invalid';

-- name: due_for_backoff
SELECT delivery.message_id, delivery.queue, delivery.receipt_handle, max(record.next_attempt_at) AS next_attempt_at
FROM nodd_wal_records AS record
INNER JOIN nodd_wal_delivery_units AS unit ON record.wal_id = unit.wal_id
INNER JOIN nodd_wal_deliveries AS delivery ON unit.message_id = delivery.message_id
WHERE
    record.wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
    AND record.status = 'failed' AND record.next_attempt_at IS NOT NULL AND delivery.state = 'in_flight'
GROUP BY delivery.message_id, delivery.queue, delivery.receipt_handle
ORDER BY delivery.message_id;
