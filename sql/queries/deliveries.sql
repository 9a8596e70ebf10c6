-- Statements about messages.

-- name: due_for_deletion
-- The open messages by their index, the units of each by theirs. An aggregate, because PostgreSQL answers NOT EXISTS
-- beside an OR by reading every unit that there is.
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
SELECT
    delivery.message_id, delivery.queue, delivery.receipt_handle, delivery.received_at, min(record.dataset) AS dataset
FROM nodd_wal_records AS record
INNER JOIN nodd_wal_delivery_units AS unit ON record.wal_id = unit.wal_id
INNER JOIN nodd_wal_deliveries AS delivery ON unit.message_id = delivery.message_id
WHERE
    record.status = 'in_progress' AND record.ingest_run_id = :run_id AND delivery.state = 'in_flight'
    AND delivery.message_id > :after
GROUP BY delivery.message_id, delivery.queue, delivery.receipt_handle, delivery.received_at
ORDER BY delivery.message_id
LIMIT :limit;

-- name: counts
SELECT state, count(*) AS messages FROM nodd_wal_deliveries GROUP BY state;

-- name: duplicates
SELECT record.dataset, count(*) - count(DISTINCT unit.wal_id) AS duplicates
FROM nodd_wal_delivery_units AS unit
INNER JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id
GROUP BY record.dataset;

-- name: rejected
-- A batch is of one moment: within it by id and record, and a page goes on behind the last row of the one before.
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
-- What came in is counted from first history rows and from units announced without a record, not from what became of
-- it. A message in flight must have a unit to wait for, a rejected one its reason; otherwise nothing will ever end it.
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
-- Of a message that comes again its first landing stays: SQS keeps a body as it was sent. Only a first receive finds it
-- verified; a message that came unchecked before is checked whenever it comes.
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
-- What was found first stays: a message that comes again is rejected for the same, or by a newer release.
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
-- Only under the receipt that was deleted: on PostgreSQL a receiver's transaction that was waited for may have brought
-- another one, and the condition is asked again. Its first part is what finds the rows on SQLite.
UPDATE nodd_wal_deliveries SET state = 'deleted', settled_at = :at
WHERE @locked(
    nodd_wal_deliveries, message_id, FOR NO KEY UPDATE,
    message_id IN (SELECT due.message_id FROM @batch(:batch, due, message_id text))
    AND (message_id, receipt_handle) IN (
        SELECT due.message_id, due.receipt_handle FROM @batch(:batch, due, message_id text, receipt_handle text)
    )
);

-- name: newly_dead
-- Those that were received from another queue, and nobody has found on this one yet.
SELECT delivery.message_id, min(record.dataset) AS dataset
FROM nodd_wal_deliveries AS delivery
LEFT JOIN nodd_wal_delivery_units AS unit ON delivery.message_id = unit.message_id
LEFT JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id
WHERE
    delivery.message_id IN (@each(:message_ids)) AND delivery.state <> 'dead_lettered' AND delivery.queue <> :queue
GROUP BY delivery.message_id;

-- name: dead_letter
-- One that waits on the dead-letter queue itself for its units, or has been deleted from it, is left as it is.
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
