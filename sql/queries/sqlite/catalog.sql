-- name: lock_root
-- BEGIN IMMEDIATE has already locked the whole database.
SELECT 1;

-- name: standing
-- With the event of the unit whose Item stands: what orders versions of an object of which one has no sequencer.
SELECT
    item.item_id, item.partition_key, item.page, item.content_sha256, item.object_uri, item.wal_id,
    item.replaces_wal_id, item.precedence, item.sequencer, item.revision, item.summaries, record.event_time
FROM catalog_items AS item
LEFT JOIN nodd_wal_records AS record ON item.wal_id = record.wal_id
WHERE item.collection_id = :collection_id
  AND item.item_id IN (SELECT value FROM json_each(:item_ids));

-- name: apply
-- Compare-and-swap of a batch: a row comes back for every Item that still stands at the revision its writer saw.
INSERT INTO catalog_items (
    collection_id, item_id, partition_key, page, content_sha256, object_uri, wal_id, precedence, sequencer, revision,
    west, south, east, north, start_at, end_at, summaries, updated_at
)
SELECT
    :collection_id, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'),
    json_extract(value, '$[7]'), json_extract(value, '$[8]'), json_extract(value, '$[9]'),
    json_extract(value, '$[10]'), json_extract(value, '$[11]'), json_extract(value, '$[12]'),
    json_extract(value, '$[13]'), json_extract(value, '$[14]'), json_extract(value, '$[15]'), :updated_at
FROM json_each(:rows)
WHERE true
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
  AND item.item_id IN (SELECT value FROM json_each(:item_ids))
UNION ALL
SELECT item.item_id, record.wal_id, record.object_uri, record.object_version
FROM catalog_items AS item
INNER JOIN nodd_wal_records AS record ON item.replaces_wal_id = record.wal_id
WHERE item.collection_id = :collection_id
  AND item.item_id IN (SELECT value FROM json_each(:item_ids));
