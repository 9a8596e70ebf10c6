-- name: lock_root
-- "kfsr" in ASCII. Taken after the lock on a collection, never before, so that two writers cannot wait for each other.
SELECT pg_advisory_xact_lock(1801876338);

-- name: standing
-- With the event of the unit whose Item stands: what orders versions of an object of which one has no sequencer.
SELECT
    item.item_id, item.partition_key, item.page, item.content_sha256, item.object_uri, item.wal_id,
    item.replaces_wal_id, item.precedence, item.sequencer, item.revision, item.summaries, record.event_time
FROM catalog_items AS item
LEFT JOIN nodd_wal_records AS record ON item.wal_id = record.wal_id
WHERE item.collection_id = :collection_id
  AND item.item_id IN (SELECT jsonb_array_elements_text(CAST(:item_ids AS jsonb)));

-- name: apply
-- Compare-and-swap of a batch: a row comes back for every Item that still stands at the revision its writer saw.
INSERT INTO catalog_items (
    collection_id, item_id, partition_key, page, content_sha256, object_uri, wal_id, precedence, sequencer, revision,
    west, south, east, north, start_at, end_at, summaries, updated_at
)
SELECT
    :collection_id, value ->> 0, value ->> 1, CAST(value ->> 2 AS integer), value ->> 3, value ->> 4, value ->> 5,
    value ->> 6, value ->> 7, CAST(value ->> 8 AS integer), CAST(value ->> 9 AS double precision),
    CAST(value ->> 10 AS double precision), CAST(value ->> 11 AS double precision),
    CAST(value ->> 12 AS double precision), CAST(value ->> 13 AS timestamptz), CAST(value ->> 14 AS timestamptz),
    CAST(value ->> 15 AS jsonb), CAST(:updated_at AS timestamptz)
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS batch (value)
ON CONFLICT (collection_id, item_id) DO UPDATE SET
    content_sha256 = excluded.content_sha256, object_uri = excluded.object_uri, wal_id = excluded.wal_id,
    -- Writing a lost file again replaces no Item.
    replaces_wal_id = CASE
        WHEN catalog_items.content_sha256 = excluded.content_sha256 THEN catalog_items.replaces_wal_id
        ELSE catalog_items.wal_id
    END,
    precedence = excluded.precedence, sequencer = excluded.sequencer, revision = excluded.revision,
    west = excluded.west, south = excluded.south, east = excluded.east, north = excluded.north,
    start_at = excluded.start_at, end_at = excluded.end_at, summaries = excluded.summaries,
    updated_at = excluded.updated_at
WHERE catalog_items.revision = excluded.revision - 1
RETURNING item_id;

-- name: owners
-- Whose Items stand, and whose stood there before.
SELECT item.item_id, item.wal_id, item.object_uri, record.object_version
FROM catalog_items AS item
LEFT JOIN nodd_wal_records AS record ON item.wal_id = record.wal_id
WHERE item.collection_id = :collection_id
  AND item.item_id IN (SELECT jsonb_array_elements_text(CAST(:item_ids AS jsonb)))
UNION ALL
SELECT item.item_id, record.wal_id, record.object_uri, record.object_version
FROM catalog_items AS item
INNER JOIN nodd_wal_records AS record ON item.replaces_wal_id = record.wal_id
WHERE item.collection_id = :collection_id
  AND item.item_id IN (SELECT jsonb_array_elements_text(CAST(:item_ids AS jsonb)));
