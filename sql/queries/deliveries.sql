-- Statements about messages.

-- name: due_for_deletion
-- Open messages and their units are read by index. The condition is an aggregate, because with NOT EXISTS beside an OR
-- PostgreSQL would read every unit.
SELECT delivery.message_id, delivery.queue, delivery.receipt_handle
FROM nodd_wal_deliveries AS delivery
WHERE
    delivery.state IN ('in_flight', 'ignored')
    AND (
        delivery.state = 'ignored'
        OR (
            SELECT min(CASE WHEN record.status IN ('succeeded', 'quarantined') THEN 1 ELSE 0 END)
            FROM nodd_wal_delivery_units AS unit
            LEFT JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id
            WHERE unit.message_id = delivery.message_id
        ) = 1
    )
ORDER BY delivery.received_at, delivery.message_id
LIMIT :limit;

-- name: held_by
-- The conditions on messages come after the join. With statistics from before the claim, PostgreSQL would otherwise
-- begin with the messages in flight, and read all units in progress for each of them.
WITH held AS MATERIALIZED (
    SELECT wal_id, dataset FROM nodd_wal_records WHERE status = 'in_progress' AND ingest_run_id = :run_id
),
messages AS MATERIALIZED (
    SELECT
        delivery.message_id, delivery.queue, delivery.receipt_handle, delivery.received_at, delivery.state,
        min(held.dataset) AS dataset
    FROM held
    INNER JOIN nodd_wal_delivery_units AS unit ON held.wal_id = unit.wal_id
    INNER JOIN nodd_wal_deliveries AS delivery ON unit.message_id = delivery.message_id
    GROUP BY delivery.message_id, delivery.queue, delivery.receipt_handle, delivery.received_at, delivery.state
)
SELECT message_id, queue, receipt_handle, received_at, dataset
FROM messages
WHERE state = 'in_flight' AND message_id > :after
ORDER BY message_id
LIMIT :limit;

-- name: counts
SELECT state, count(*) AS messages FROM nodd_wal_deliveries GROUP BY state;

-- name: duplicates
SELECT record.dataset, count(*) - count(DISTINCT unit.wal_id) AS duplicates
FROM nodd_wal_delivery_units AS unit
INNER JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id
GROUP BY record.dataset;

-- name: rejected
-- Rejections of a batch have the same time and are ordered by message and entry; a page begins after the page before.
SELECT received_at AS rejected_at, reason_code, records, message_id, record_index, detail
FROM rejected_messages
WHERE
    received_at <= :before AND (received_at < :before OR (message_id, record_index) > (:place, :number))
    AND (:reason_code IS NULL OR reason_code = :reason_code)
    AND (:message_id IS NULL OR substr(message_id, 1, length(:message_id)) = :message_id)
ORDER BY received_at DESC, message_id, record_index
LIMIT :limit;

-- name: rejected_landing
SELECT DISTINCT delivery.landing_sha256
FROM nodd_wal_deliveries AS delivery
INNER JOIN rejected_messages AS rejected ON delivery.message_id = rejected.message_id
WHERE delivery.message_id = :message_id;

-- name: ignored
SELECT message_id, record_index, reason, dataset, bucket, object_key AS key, records, received_at
FROM ignored_records
WHERE
    (:dataset IS NULL OR dataset = :dataset) AND (:reason IS NULL OR reason = :reason)
    AND (:bucket IS NULL OR bucket = :bucket)
    AND (:message_id IS NULL OR substr(message_id, 1, length(:message_id)) = :message_id)
    AND (:key_prefix IS NULL OR substr(object_key, 1, length(:key_prefix)) = :key_prefix)
ORDER BY received_at DESC, message_id, record_index
LIMIT :limit;

-- name: ignored_counts
SELECT
    dataset, reason, sum(records) AS records, count(DISTINCT message_id) AS messages, max(received_at) AS newest_at
FROM ignored_records
WHERE
    (:dataset IS NULL OR dataset = :dataset) AND (:reason IS NULL OR reason = :reason)
    AND (:bucket IS NULL OR bucket = :bucket)
    AND (:message_id IS NULL OR substr(message_id, 1, length(:message_id)) = :message_id)
    AND (:key_prefix IS NULL OR substr(object_key, 1, length(:key_prefix)) = :key_prefix)
GROUP BY dataset, reason
ORDER BY coalesce(dataset, ''), reason;

-- name: conservation
-- Received units are counted without the status: first rows of the history, and announced units without a record.
-- A message in flight without a unit, or rejected without a reason, could never leave the queue; it counts as lost.
SELECT 'units_received' AS side, '' AS name, count(*) + (
    SELECT count(DISTINCT unit.wal_id)
    FROM nodd_wal_delivery_units AS unit
    LEFT JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id
    WHERE record.wal_id IS NULL
) AS amount
FROM nodd_wal_transitions
WHERE version = 1
UNION ALL
SELECT 'units' AS side, status AS name, count(*) AS amount
FROM nodd_wal_records
GROUP BY status
UNION ALL
SELECT 'messages_received' AS side, '' AS name, count(*) AS amount
FROM nodd_wal_deliveries
UNION ALL
SELECT 'messages' AS side, delivery.state AS name, count(*) AS amount
FROM nodd_wal_deliveries AS delivery
WHERE
    CASE delivery.state
        WHEN 'in_flight' THEN EXISTS (
            SELECT 1 FROM nodd_wal_delivery_units AS unit WHERE unit.message_id = delivery.message_id
        )
        WHEN 'rejected' THEN EXISTS (
            SELECT 1 FROM rejected_messages AS rejected WHERE rejected.message_id = delivery.message_id
        )
        ELSE TRUE
    END
GROUP BY delivery.state;

-- name: record
-- A message that is received again keeps its first landed batch, because SQS never changes a body. Only a first receive
-- makes a message verified; a message that is not verified is checked at every receive.
INSERT INTO nodd_wal_deliveries (
    message_id, queue, receipt_handle, receive_count, first_received_at, received_at, landing_sha256,
    sns_message_id, topic_arn, state, signature
)
SELECT
    message_id, queue, receipt_handle, receives, @as_time(:at), @as_time(:at), landing_sha256,
    sns_message_id, topic_arn, state, signature
FROM @batch(:batch, delivery,
    message_id text, queue text, receipt_handle text, receives integer, landing_sha256 text, sns_message_id text,
    topic_arn text, state text, signature text
)
WHERE TRUE
@in_order(message_id)
ON CONFLICT (message_id) DO UPDATE SET
    queue = excluded.queue,
    receipt_handle = excluded.receipt_handle,
    receive_count = nodd_wal_deliveries.receive_count + excluded.receive_count,
    received_at = excluded.received_at,
    state = excluded.state,
    signature = CASE
        WHEN 'verified' IN (nodd_wal_deliveries.signature, excluded.signature) THEN nodd_wal_deliveries.signature
        ELSE excluded.signature
    END,
    settled_at = NULL;

-- name: record_units
INSERT INTO nodd_wal_delivery_units (message_id, wal_id)
SELECT message_id, wal_id
FROM @batch(:batch, unit, message_id text, wal_id text)
WHERE TRUE
@in_order(message_id, wal_id)
ON CONFLICT (message_id, wal_id) DO NOTHING;

-- name: record_ignored
INSERT INTO ignored_records (message_id, record_index, reason, dataset, bucket, object_key, records, received_at)
SELECT message_id, record_index, reason, dataset, bucket, key, records, @as_time(:at)
FROM @batch(:batch, ignored,
    message_id text, record_index integer, reason text, dataset text, bucket text, key text, records integer
)
WHERE @unless_there(ignored_records, ignored, message_id, record_index)
@in_order(message_id, CAST(record_index AS text))
ON CONFLICT (message_id, record_index) DO NOTHING;

-- name: reject
-- The first rejection of an entry is kept, even if a newer release would reject the entry for another reason.
INSERT INTO rejected_messages (message_id, record_index, reason_code, detail, records, received_at)
SELECT message_id, record_index, reason_code, detail, records, @as_time(:at)
FROM @batch(:batch, rejected,
    message_id text, record_index integer, reason_code text, detail text, records integer
)
WHERE @unless_there(rejected_messages, rejected, message_id, record_index)
@in_order(message_id, CAST(record_index AS text))
ON CONFLICT (message_id, record_index) DO NOTHING;

-- name: mark
UPDATE nodd_wal_deliveries SET state = :state, settled_at = :at
WHERE @locked(nodd_wal_deliveries, message_id, FOR NO KEY UPDATE, message_id IN (@each(:message_ids)));

-- name: mark_acknowledged
-- Only messages that still have the receipt by which they were deleted. PostgreSQL evaluates this condition again after
-- it has waited for a receiver, which may have written a newer receipt. The condition's first part lets SQLite use the
-- index.
UPDATE nodd_wal_deliveries SET state = 'deleted', settled_at = :at
WHERE @locked(
    nodd_wal_deliveries, message_id, FOR NO KEY UPDATE,
    message_id IN (SELECT due.message_id FROM @batch(:batch, due, message_id text))
    AND (message_id, receipt_handle) IN (
        SELECT due.message_id, due.receipt_handle FROM @batch(:batch, due, message_id text, receipt_handle text)
    )
);

-- name: newly_dead
-- Messages that were last received from another queue, and are not marked as dead-lettered yet.
SELECT delivery.message_id, min(record.dataset) AS dataset
FROM nodd_wal_deliveries AS delivery
LEFT JOIN nodd_wal_delivery_units AS unit ON delivery.message_id = unit.message_id
LEFT JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id
WHERE
    delivery.message_id IN (@each(:message_ids)) AND delivery.state <> 'dead_lettered' AND delivery.queue <> :queue
GROUP BY delivery.message_id;

-- name: dead_letter
-- A message that was received from this dead-letter queue is not changed, unless it was rejected.
UPDATE nodd_wal_deliveries SET state = 'dead_lettered', settled_at = :at
WHERE @locked(
    nodd_wal_deliveries, message_id, FOR NO KEY UPDATE,
    message_id IN (@each(:message_ids)) AND state <> 'dead_lettered' AND (queue <> :queue OR state = 'rejected')
);

-- name: states
SELECT message_id, state, signature FROM nodd_wal_deliveries
WHERE message_id IN (@each(:message_ids));

-- name: due_for_backoff
SELECT delivery.message_id, delivery.queue, delivery.receipt_handle, max(record.next_attempt_at) AS next_attempt_at
FROM nodd_wal_records AS record
INNER JOIN nodd_wal_delivery_units AS unit ON record.wal_id = unit.wal_id
INNER JOIN nodd_wal_deliveries AS delivery ON unit.message_id = delivery.message_id
WHERE
    record.wal_id IN (@each(:wal_ids))
    AND record.status = 'failed' AND record.next_attempt_at IS NOT NULL AND delivery.state = 'in_flight'
GROUP BY delivery.message_id, delivery.queue, delivery.receipt_handle
ORDER BY delivery.message_id;
