-- Statements about messages that are the same in both databases.

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
SELECT
    received_at AS rejected_at, reason_code, records, message_id, record_index,
    NULL AS dataset, NULL AS object_uri, detail
FROM rejected_messages
WHERE
    (:reason_code IS NULL OR reason_code = :reason_code)
    AND (:message_id IS NULL OR substr(message_id, 1, length(:message_id)) = :message_id)
UNION ALL
SELECT found_at, reason_code, 1, NULL, NULL, dataset, object_uri, detail
FROM rejected_objects
WHERE (:reason_code IS NULL OR reason_code = :reason_code) AND :message_id IS NULL
ORDER BY 1 DESC, 4, 5, 7
LIMIT :limit;

-- name: rejected_body
SELECT body FROM rejected_bodies WHERE message_id = :message_id;

-- name: ignored
SELECT message_id, record_index, reason, dataset, bucket, object_key, records, received_at
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
    dataset, reason, sum(records) AS records, count(DISTINCT message_id) AS messages, max(received_at) AS newest
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
