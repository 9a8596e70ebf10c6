-- name: lock_root
-- BEGIN IMMEDIATE has already locked the whole database.
SELECT 1;

-- name: standing
-- With the event of the unit whose Item stands: what orders versions of an object of which one has no sequencer.
SELECT
    item.item_id, item.partition_key, item.page, item.content_sha256, item.object_uri, item.wal_id,
    item.replaces_wal_id, item.precedence, item.sequencer, item.revision, item.summaries, item.promotion_id,
    record.event_time
FROM catalog_items AS item
LEFT JOIN nodd_wal_records AS record ON item.wal_id = record.wal_id
WHERE item.collection_id = :collection_id
  AND item.item_id IN (SELECT value FROM json_each(:item_ids));

-- name: apply
-- Compare-and-swap of a batch: a row comes back for every Item that still stands as its writer saw it, and as the undo log
-- has kept it. A row that was taken back meanwhile is not revised.
INSERT INTO catalog_items (
    collection_id, item_id, partition_key, page, content_sha256, object_uri, wal_id, precedence, sequencer, revision,
    west, south, east, north, start_at, end_at, summaries, updated_at, promotion_id
)
SELECT
    :collection_id, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'),
    json_extract(value, '$[7]'), json_extract(value, '$[8]'), json_extract(value, '$[9]'),
    json_extract(value, '$[10]'), json_extract(value, '$[11]'), json_extract(value, '$[12]'),
    json_extract(value, '$[13]'), json_extract(value, '$[14]'), json_extract(value, '$[15]'), :updated_at,
    json_extract(value, '$[16]')
FROM json_each(:rows)
WHERE
    json_extract(value, '$[8]') = 1 + coalesce(
        (
            SELECT item.revision FROM catalog_items AS item
            WHERE item.collection_id = :collection_id AND item.item_id = json_extract(json_each.value, '$[0]')
        ), 0
    )
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
    updated_at = excluded.updated_at, promotion_id = excluded.promotion_id
WHERE
    catalog_items.promotion_id IS excluded.promotion_id
    OR EXISTS (
        SELECT 1 FROM catalog_replaced_items AS replaced
        WHERE
            replaced.promotion_id = excluded.promotion_id AND replaced.revision = catalog_items.revision
            AND replaced.before_promotion_id IS catalog_items.promotion_id
    )
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

-- name: log_promotions
INSERT INTO catalog_promotions (
    run_id, dataset, collection_id, item_id, partition_key, after_sha256, before_promotion_id, before_revision,
    before_sha256, logged_at
)
SELECT
    json_extract(value, '$[0]'), :dataset, :collection_id, json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'),
    :logged_at
FROM json_each(:rows)
WHERE true
RETURNING item_id, promotion_id;

-- name: log_replaced
-- An Item that does not stand as its writer saw it has no row here, and the writer is refused.
INSERT INTO catalog_replaced_items (
    promotion_id, collection_id, item_id, partition_key, page, content_sha256, object_uri, wal_id, precedence, sequencer,
    revision, west, south, east, north, start_at, end_at, summaries, updated_at, replaces_wal_id, before_promotion_id
)
SELECT
    promotion.promotion_id, item.collection_id, item.item_id, item.partition_key, item.page, item.content_sha256,
    item.object_uri, item.wal_id, item.precedence, item.sequencer, item.revision, item.west, item.south, item.east,
    item.north, item.start_at, item.end_at, item.summaries, item.updated_at, item.replaces_wal_id, item.promotion_id
FROM catalog_promotions AS promotion
INNER JOIN catalog_items AS item
    ON promotion.collection_id = item.collection_id AND promotion.item_id = item.item_id
    AND promotion.before_revision = item.revision AND promotion.before_promotion_id IS item.promotion_id
WHERE promotion.promotion_id IN (SELECT value FROM json_each(:promotion_ids));

-- name: rivals
-- Earlier promotions of Items: what one of them left without coming through is not what stood before.
SELECT item_id, after_sha256, before_promotion_id, before_revision, before_sha256
FROM catalog_promotions
WHERE collection_id = :collection_id AND before_revision IS NOT NULL
  AND item_id IN (SELECT value FROM json_each(:item_ids));

-- name: promotions_of_items
-- Whose a promotion was, and whether its run has been undone since.
SELECT
    promotion.promotion_id, promotion.run_id, promotion.dataset, promotion.item_id, promotion.partition_key,
    promotion.after_sha256, promotion.before_promotion_id, promotion.before_revision, promotion.before_sha256,
    EXISTS (
        SELECT 1 FROM catalog_withdrawals AS withdrawal
        WHERE
            withdrawal.collection_id = promotion.collection_id AND withdrawal.dataset = promotion.dataset
            AND withdrawal.run_id = promotion.run_id AND withdrawal.up_to_promotion_id >= promotion.promotion_id
    ) AS withdrawn
FROM catalog_promotions AS promotion
WHERE promotion.collection_id = :collection_id AND promotion.item_id IN (
    SELECT own.item_id FROM catalog_promotions AS own
    WHERE own.run_id = :run_id AND own.collection_id = :collection_id AND own.dataset = :dataset
)
ORDER BY promotion.promotion_id;

-- name: kept_files
SELECT sha256, content, content_bytes FROM catalog_kept_files
WHERE sha256 IN (SELECT value FROM json_each(:digests));

-- name: take_back
DELETE FROM catalog_items
WHERE collection_id = :collection_id AND item_id IN (SELECT value FROM json_each(:item_ids))
RETURNING partition_key, page, summaries;

-- name: put_back
INSERT INTO catalog_items (
    collection_id, item_id, partition_key, page, content_sha256, object_uri, wal_id, precedence, sequencer, revision,
    west, south, east, north, start_at, end_at, summaries, updated_at, replaces_wal_id, promotion_id
)
SELECT
    collection_id, item_id, partition_key, page, content_sha256, object_uri, wal_id, precedence, sequencer, revision,
    west, south, east, north, start_at, end_at, summaries, updated_at, replaces_wal_id, before_promotion_id
FROM catalog_replaced_items
WHERE promotion_id IN (SELECT value FROM json_each(:promotion_ids))
RETURNING partition_key, page, summaries;
