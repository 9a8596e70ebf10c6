-- name: open_collection
-- Returns a row when the root catalog has to be written again. The collection's row stays locked until the transaction
-- ends, also when WHERE refuses the update: that makes one writer of a collection wait for the other.
INSERT INTO catalog_collections (collection_id, dataset, title) VALUES (:collection_id, :dataset, :title)
ON CONFLICT (collection_id) DO UPDATE SET dataset = excluded.dataset, title = excluded.title
WHERE catalog_collections.dataset <> excluded.dataset OR catalog_collections.title <> excluded.title
RETURNING collection_id;

-- name: collections
SELECT collection_id, title FROM catalog_collections ORDER BY collection_id;

-- name: last_page
SELECT page, items FROM catalog_pages
WHERE collection_id = :collection_id AND partition_key = :partition_key
ORDER BY page DESC LIMIT 1;

-- name: page_items
SELECT item_id FROM catalog_items
WHERE collection_id = :collection_id AND partition_key = :partition_key AND page = :page
ORDER BY item_id;

-- name: day_pages
SELECT page FROM catalog_pages
WHERE collection_id = :collection_id AND partition_key = :partition_key
ORDER BY page;

-- name: year_days
SELECT DISTINCT partition_key FROM catalog_pages
WHERE collection_id = :collection_id AND partition_key >= :first_day AND partition_key <= :last_day
ORDER BY partition_key;

-- name: years
SELECT DISTINCT substr(partition_key, 1, 4) AS year FROM catalog_pages
WHERE collection_id = :collection_id
ORDER BY year;

-- name: recount_page
-- A longitude interval runs over Greenwich when it begins west and ends east of it, or, having crossed the
-- antimeridian, begins west of it or ends east of it.
INSERT INTO catalog_pages (
    collection_id, partition_key, page, items, west, south, east, north, west_360, east_360,
    over_antimeridian, over_greenwich, start_at, end_at
)
SELECT
    collection_id, partition_key, page, count(*), min(west), min(south), max(east), max(north),
    min(CASE WHEN west < 0 THEN west + 360 ELSE west END),
    max(CASE WHEN east < 0 THEN east + 360 ELSE east END),
    count(*) FILTER (WHERE west > east),
    count(*) FILTER (WHERE (west < 0 AND east >= 0) OR (west > east AND (west < 0 OR east >= 0))),
    min(start_at), max(end_at)
FROM catalog_items
WHERE collection_id = :collection_id AND partition_key = :partition_key AND page = :page
GROUP BY collection_id, partition_key, page
ON CONFLICT (collection_id, partition_key, page) DO UPDATE SET
    items = excluded.items, west = excluded.west, south = excluded.south, east = excluded.east,
    north = excluded.north, west_360 = excluded.west_360, east_360 = excluded.east_360,
    over_antimeridian = excluded.over_antimeridian, over_greenwich = excluded.over_greenwich,
    start_at = excluded.start_at, end_at = excluded.end_at;

-- name: extent
SELECT
    min(west) AS west, min(south) AS south, max(east) AS east, max(north) AS north,
    min(west_360) AS west_360, max(east_360) AS east_360,
    sum(over_antimeridian) AS over_antimeridian, sum(over_greenwich) AS over_greenwich,
    min(start_at) AS start_at, max(end_at) AS end_at
FROM catalog_pages WHERE collection_id = :collection_id;

-- name: summaries
SELECT property, value FROM catalog_summaries
WHERE collection_id = :collection_id AND items > 0
ORDER BY property, value;

-- name: count_summary_value
INSERT INTO catalog_summaries (collection_id, property, value, items)
VALUES (:collection_id, :property, :value, :items)
ON CONFLICT (collection_id, property, value) DO UPDATE SET items = catalog_summaries.items + excluded.items;

-- name: uncount_summary_value
UPDATE catalog_summaries SET items = items - :items
WHERE collection_id = :collection_id AND property = :property AND value = :value;

-- name: keep_file
INSERT INTO catalog_kept_files (sha256, content, content_bytes) VALUES (:sha256, :content, :content_bytes)
ON CONFLICT (sha256) DO NOTHING;

-- name: withdraw
INSERT INTO catalog_withdrawals (collection_id, dataset, run_id, up_to_promotion_id, withdrawn_at)
VALUES (:collection_id, :dataset, :run_id, :up_to_promotion_id, :withdrawn_at)
ON CONFLICT (collection_id, dataset, run_id, up_to_promotion_id) DO NOTHING;

-- name: drop_empty_page
DELETE FROM catalog_pages
WHERE collection_id = :collection_id AND partition_key = :partition_key AND page = :page
  AND NOT EXISTS (
      SELECT 1 FROM catalog_items AS item
      WHERE
          item.collection_id = catalog_pages.collection_id AND item.partition_key = catalog_pages.partition_key
          AND item.page = catalog_pages.page
  );

-- name: drop_empty_collection
DELETE FROM catalog_collections
WHERE collection_id = :collection_id AND NOT EXISTS (
    SELECT 1 FROM catalog_items AS item WHERE item.collection_id = catalog_collections.collection_id
);
