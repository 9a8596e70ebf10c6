-- name: open_collection
-- Returns a row when the root catalog has to be written again. The collection's row stays locked until the transaction
-- ends, even if WHERE refuses the update, so that the writers of a collection wait for each other.
INSERT INTO catalog_collections (collection_id, dataset, title) VALUES (:collection_id, :dataset, :title)
ON CONFLICT (collection_id) DO UPDATE SET dataset = excluded.dataset, title = excluded.title
WHERE catalog_collections.dataset <> excluded.dataset OR catalog_collections.title <> excluded.title
RETURNING collection_id;

-- name: collections
SELECT collection_id, title FROM catalog_collections AS collection
WHERE EXISTS (SELECT 1 FROM catalog_pages AS page WHERE page.collection_id = collection.collection_id)
ORDER BY collection_id;

-- name: page_items
SELECT item_id FROM catalog_items
WHERE collection_id = :collection_id AND partition_key = :partition_key AND page = :page
ORDER BY item_id;

-- name: day_pages
SELECT page, items FROM catalog_pages
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
-- A longitude interval contains Greenwich if it begins west and ends east of it, or, if it crosses the antimeridian,
-- begins west or ends east of it.
INSERT INTO catalog_pages (
    collection_id, partition_key, page, items, west, south, east, north, west_360, east_360,
    over_antimeridian, over_greenwich, start_at, end_at, newest_promotion
)
SELECT
    collection_id, partition_key, page, count(*), min(west), min(south), max(east), max(north),
    min(CASE WHEN west < 0 THEN west + 360 ELSE west END),
    max(CASE WHEN east < 0 THEN east + 360 ELSE east END),
    count(*) FILTER (WHERE west > east),
    count(*) FILTER (WHERE (west < 0 AND east >= 0) OR (west > east AND (west < 0 OR east >= 0))),
    min(start_at), max(end_at), max(promotion_id)
FROM catalog_items
WHERE collection_id = :collection_id AND partition_key = :partition_key AND page = :page
GROUP BY collection_id, partition_key, page
ON CONFLICT (collection_id, partition_key, page) DO UPDATE SET
    items = excluded.items, west = excluded.west, south = excluded.south, east = excluded.east,
    north = excluded.north, west_360 = excluded.west_360, east_360 = excluded.east_360,
    over_antimeridian = excluded.over_antimeridian, over_greenwich = excluded.over_greenwich,
    start_at = excluded.start_at, end_at = excluded.end_at, newest_promotion = excluded.newest_promotion;

-- name: newest_run
SELECT run_id FROM catalog_promotions
WHERE promotion_id = (SELECT max(newest_promotion) FROM catalog_pages WHERE collection_id = :collection_id);

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
UPDATE catalog_promotions SET withdrawn_at = :withdrawn_at
WHERE promotion_id IN (@each(:promotion_ids, bigint)) AND withdrawn_at IS NULL;

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

-- name: current
-- The event time of an Item's unit is returned, too, because it orders versions of an object if one has no sequencer.
SELECT
    item.item_id, item.partition_key AS partition, item.page, item.content_sha256, item.object_uri, item.wal_id,
    item.replaces_wal_id AS replaces, item.precedence, item.sequencer, item.revision, item.summaries, item.promotion_id,
    record.event_time
FROM catalog_items AS item
LEFT JOIN nodd_wal_records AS record ON item.wal_id = record.wal_id
WHERE (item.collection_id, item.item_id) IN (SELECT :collection_id, value FROM (@each(:item_ids)) AS wanted);

-- name: apply
-- Compare-and-swap of a batch: returns a row for every Item that was written. An Item is written if it is new, or if
-- its row is still the row that its writer read and that the undo log has stored.
INSERT INTO catalog_items (
    collection_id, item_id, partition_key, page, content_sha256, object_uri, wal_id, precedence, sequencer, revision,
    west, south, east, north, start_at, end_at, summaries, updated_at, promotion_id
)
SELECT
    :collection_id, value ->> 0, value ->> 1, CAST(value ->> 2 AS integer), value ->> 3, value ->> 4, value ->> 5,
    value ->> 6, value ->> 7, CAST(value ->> 8 AS integer), CAST(value ->> 9 AS double precision),
    CAST(value ->> 10 AS double precision), CAST(value ->> 11 AS double precision),
    CAST(value ->> 12 AS double precision), @as_time(value ->> 13), @as_time(value ->> 14),
    @as_json(value ->> 15), @as_time(:updated_at), CAST(value ->> 16 AS bigint)
FROM @rows(:rows, batch)
WHERE
    CAST(value ->> 8 AS integer) = 1 + coalesce(
        (
            SELECT item.revision FROM catalog_items AS item
            WHERE item.collection_id = :collection_id AND item.item_id = batch.value ->> 0
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
    catalog_items.revision = excluded.revision - 1
    AND (
        catalog_items.promotion_id IS NOT DISTINCT FROM excluded.promotion_id
        OR EXISTS (
            SELECT 1 FROM catalog_promotions AS logged
            WHERE
                logged.promotion_id = excluded.promotion_id AND logged.before_revision = catalog_items.revision
                AND logged.before_promotion_id IS NOT DISTINCT FROM catalog_items.promotion_id
                AND logged.old_page IS NOT NULL
        )
    )
RETURNING item_id;

-- name: owners
-- The units of the current Items, and of the versions that these replaced.
SELECT item.item_id, item.wal_id, item.object_uri, record.object_version
FROM catalog_items AS item
LEFT JOIN nodd_wal_records AS record ON item.wal_id = record.wal_id
WHERE (item.collection_id, item.item_id) IN (SELECT :collection_id, value FROM (@each(:item_ids)) AS wanted)
UNION ALL
SELECT item.item_id, record.wal_id, record.object_uri, record.object_version
FROM catalog_items AS item
INNER JOIN nodd_wal_records AS record ON item.replaces_wal_id = record.wal_id
WHERE (item.collection_id, item.item_id) IN (SELECT :collection_id, value FROM (@each(:item_ids)) AS wanted);

-- name: log_promotions
-- Logs each promotion with the index row to replace, if the writer has read this row; else `apply` refuses the write.
INSERT INTO catalog_promotions (
    run_id, dataset, collection_id, item_id, partition_key, after_sha256, before_promotion_id, before_revision,
    before_sha256, wal_id, logged_at, old_partition_key, old_page, old_content_sha256, old_object_uri, old_wal_id,
    old_precedence, old_sequencer, old_west, old_south, old_east, old_north, old_start_at, old_end_at, old_summaries,
    old_updated_at, old_replaces_wal_id
)
SELECT
    value ->> 0, :dataset, :collection_id, value ->> 1, value ->> 2,
    value ->> 3, CAST(value ->> 4 AS bigint), CAST(value ->> 5 AS integer), value ->> 6, value ->> 7,
    @as_time(:logged_at), item.partition_key, item.page, item.content_sha256, item.object_uri, item.wal_id,
    item.precedence, item.sequencer, item.west, item.south, item.east, item.north, item.start_at, item.end_at,
    item.summaries, item.updated_at, item.replaces_wal_id
FROM @rows(:rows, batch)
LEFT JOIN catalog_items AS item
    ON
        item.collection_id = :collection_id AND item.item_id = batch.value ->> 1
        AND item.revision = CAST(batch.value ->> 5 AS integer)
        AND item.promotion_id IS NOT DISTINCT FROM CAST(batch.value ->> 4 AS bigint)
RETURNING item_id, promotion_id;

-- name: rivals
-- Promotions of these Items that replaced a version. A promotion that was not committed can have left its file in place
-- of that version's file; before_sha256 is the hash of that version's file.
SELECT item_id, after_sha256, before_promotion_id, before_revision, before_sha256
FROM catalog_promotions
WHERE collection_id = :collection_id AND before_revision IS NOT NULL
  AND item_id IN (@each(:item_ids));

-- name: items_of_run
SELECT DISTINCT item_id FROM catalog_promotions @indexed_by(catalog_promotions_by_run)
WHERE run_id = :run_id AND collection_id = :collection_id AND dataset = :dataset;

-- name: promotions_of_items
-- Run and dataset of each promotion of these Items, and whether it was undone.
SELECT
    promotion.promotion_id, promotion.run_id, promotion.dataset, promotion.item_id,
    promotion.partition_key AS partition,
    promotion.after_sha256, promotion.before_promotion_id, promotion.before_revision, promotion.before_sha256,
    promotion.withdrawn_at IS NOT NULL AS withdrawn
FROM catalog_promotions AS promotion
WHERE promotion.collection_id = :collection_id AND promotion.item_id IN (@each(:item_ids))
ORDER BY promotion.promotion_id;

-- name: orphans
-- Items without valid lineage whose unit is in quarantine. Items written outside of any run are left out, because they
-- never have lineage.
SELECT promotion.dataset, promotion.run_id, item.item_id, item.wal_id, item.promotion_id
FROM nodd_wal_records AS record
INNER JOIN catalog_items AS item ON record.wal_id = item.wal_id
INNER JOIN catalog_promotions AS promotion ON item.promotion_id = promotion.promotion_id
WHERE
    record.wal_id IN (@each(:wal_ids)) AND record.status = 'quarantined' AND promotion.run_id IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM lineage_emissions AS emission
        INNER JOIN lineage_batches AS batch ON emission.batch_id = batch.batch_id
        WHERE
            emission.wal_id = item.wal_id AND emission.content_sha256 = item.content_sha256
            AND batch.invalidated_by IS NULL
    )
ORDER BY promotion.dataset, promotion.run_id, item.promotion_id;

-- name: kept_files
SELECT sha256, content, content_bytes FROM catalog_kept_files
WHERE sha256 IN (@each(:digests));

-- name: take_back
DELETE FROM catalog_items
WHERE (collection_id, item_id) IN (SELECT :collection_id, value FROM (@each(:item_ids)) AS wanted)
RETURNING item_id, partition_key, page, content_sha256, summaries;

-- name: put_back
INSERT INTO catalog_items (
    collection_id, item_id, partition_key, page, content_sha256, object_uri, wal_id, precedence, sequencer, revision,
    west, south, east, north, start_at, end_at, summaries, updated_at, replaces_wal_id, promotion_id
)
SELECT
    collection_id, item_id, old_partition_key, old_page, old_content_sha256, old_object_uri, old_wal_id, old_precedence,
    old_sequencer, before_revision, old_west, old_south, old_east, old_north, old_start_at, old_end_at, old_summaries,
    old_updated_at, old_replaces_wal_id, before_promotion_id
FROM catalog_promotions
WHERE promotion_id IN (@each(:promotion_ids, bigint)) AND old_page IS NOT NULL
RETURNING item_id, partition_key, page, content_sha256, summaries;

-- name: log_changes
INSERT INTO catalog_changes (collection_id, item_id, partition_key, kind, content_sha256, changed_at)
SELECT :collection_id, value ->> 0, value ->> 1, value ->> 2, value ->> 3, @as_time(:changed_at)
FROM @rows(:rows, batch)
WHERE true;

-- name: changes_after
-- The next changes for a follower, none of them beyond the position of a follower that precedes it.
SELECT change_id, item_id, partition_key, kind, content_sha256, changed_at FROM catalog_changes
WHERE
    collection_id = :collection_id AND change_id > :after
    AND change_id <= (
        SELECT coalesce(min(coalesce(place.position, 0)), 9223372036854775807)
        FROM (@each(:after_followers)) AS named
        LEFT JOIN outbox AS place
            ON place.topic = 'catalog' AND place.subject = :collection_id AND place.consumer = named.value
    )
ORDER BY change_id
LIMIT :most;

-- name: contents
-- These Items' rows of the index: the hash of the content, and the unit.
SELECT item_id, content_sha256, wal_id FROM catalog_items
WHERE (collection_id, item_id) IN (SELECT :collection_id, value FROM (@each(:item_ids)) AS wanted);

-- name: all_contents
SELECT item_id, partition_key, content_sha256 FROM catalog_items
WHERE collection_id = :collection_id;

-- name: behind
-- Collections with changes that all preceding followers have and this follower lacks, without collections in which this
-- follower is deferred or claimed.
SELECT batch.value ->> 0 AS collection_id
FROM @rows(:collections, batch)
LEFT JOIN outbox AS place
    ON place.topic = 'catalog' AND place.subject = batch.value ->> 0 AND place.consumer = :follower
WHERE
    (place.next_attempt_at IS NULL OR place.next_attempt_at <= @as_time(:now))
    AND EXISTS (
        SELECT 1 FROM catalog_changes AS change
        WHERE
            change.collection_id = batch.value ->> 0 AND change.change_id > coalesce(place.position, 0)
            AND change.change_id <= (
                SELECT coalesce(min(coalesce(earlier.position, 0)), 9223372036854775807)
                FROM (@each(:after_followers)) AS named
                LEFT JOIN outbox AS earlier
                    ON earlier.topic = 'catalog' AND earlier.subject = batch.value ->> 0
                    AND earlier.consumer = named.value
            )
    )
ORDER BY collection_id;

-- name: follower_states
SELECT
    place.consumer AS follower, place.subject AS collection_id, place.position AS change_id, place.failures,
    CASE WHEN place.failures > 0 THEN place.next_attempt_at END AS next_attempt_at, place.last_error,
    (
        SELECT count(*) FROM catalog_changes AS change
        WHERE change.collection_id = place.subject AND change.change_id > place.position
    ) AS behind
FROM outbox AS place
WHERE place.topic = 'catalog'
ORDER BY place.consumer, place.subject;

-- name: boxes_of_units
SELECT wal_id, west, south, east, north FROM catalog_items
WHERE wal_id IN (@each(:wal_ids)) AND west IS NOT NULL;
