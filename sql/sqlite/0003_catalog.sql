-- The catalog's index: what stands in the published STAC catalog. Files are written from it, never the other way round.
CREATE TABLE catalog_collections (
    collection_id text NOT NULL,
    dataset text NOT NULL,
    title text NOT NULL,
    CONSTRAINT catalog_collections_one_row_each PRIMARY KEY (collection_id)
) STRICT
-- ;
CREATE TABLE catalog_items (
    collection_id text NOT NULL,
    item_id text NOT NULL,
    -- Home of the Item's file: UTC day, and the page of the day that links it.
    partition_key text NOT NULL,
    page integer NOT NULL,
    content_sha256 text NOT NULL,
    object_uri text NOT NULL,
    wal_id text NOT NULL,
    -- What orders re-issues of one Item: the contract's group, then S3's sequencer of one key.
    precedence text NOT NULL,
    sequencer text NOT NULL,
    revision integer NOT NULL,
    -- WGS 84 degrees; west > east crosses the antimeridian; all null without geometry.
    west real,
    south real,
    east real,
    north real,
    start_at text NOT NULL,
    end_at text NOT NULL,
    -- Values that the Collection summarises, by property.
    summaries text NOT NULL,
    updated_at text NOT NULL,
    -- An Item stands once, whatever wrote it.
    CONSTRAINT catalog_items_one_row_per_item PRIMARY KEY (collection_id, item_id),
    CONSTRAINT catalog_items_collection_exists FOREIGN KEY (collection_id) REFERENCES catalog_collections (collection_id),
    CONSTRAINT catalog_items_page_counts_from_one CHECK (page >= 1),
    CONSTRAINT catalog_items_revision_counts_from_one CHECK (revision >= 1),
    CONSTRAINT catalog_items_content_is_sha256 CHECK (length(content_sha256) = 64 AND content_sha256 NOT GLOB '*[^0-9a-f]*'),
    CONSTRAINT catalog_items_bbox_is_whole CHECK (
        (west IS NULL) = (south IS NULL) AND (west IS NULL) = (east IS NULL) AND (west IS NULL) = (north IS NULL)
    ),
    CONSTRAINT catalog_items_time_range_is_ordered CHECK (start_at <= end_at),
    CONSTRAINT catalog_items_summaries_is_object CHECK (json_type(summaries) = 'object')
) STRICT, WITHOUT ROWID
-- ;
-- Serves a page's links and a page's extent.
CREATE UNIQUE INDEX catalog_items_by_page ON catalog_items (collection_id, partition_key, page, item_id)
-- ;
-- A write that did not see the revision it replaces would lose the other writer's update.
CREATE TRIGGER catalog_items_revision_grows_by_one BEFORE UPDATE ON catalog_items
WHEN NEW.revision <> OLD.revision + 1
BEGIN
    SELECT RAISE(ABORT, 'catalog_items_revision_grows_by_one');
END
-- ;
-- An Item that moved would leave its old file and its old link behind.
CREATE TRIGGER catalog_items_keep_their_home BEFORE UPDATE ON catalog_items
WHEN NEW.partition_key <> OLD.partition_key OR NEW.page <> OLD.page
BEGIN
    SELECT RAISE(ABORT, 'catalog_items_keep_their_home');
END
-- ;
-- One row per page, recounted from its Items: extents of days and collections without a look at every Item.
CREATE TABLE catalog_pages (
    collection_id text NOT NULL,
    partition_key text NOT NULL,
    page integer NOT NULL,
    items integer NOT NULL,
    west real,
    south real,
    east real,
    north real,
    -- The same longitudes counted from 0 to 360 degrees, for what lies around the antimeridian.
    west_360 real,
    east_360 real,
    over_antimeridian integer NOT NULL,
    over_greenwich integer NOT NULL,
    start_at text NOT NULL,
    end_at text NOT NULL,
    CONSTRAINT catalog_pages_one_row_each PRIMARY KEY (collection_id, partition_key, page),
    CONSTRAINT catalog_pages_are_not_empty CHECK (items >= 1)
) STRICT, WITHOUT ROWID
-- ;
-- How many Items of a collection have a value: exact summaries without a look at every Item.
CREATE TABLE catalog_summaries (
    collection_id text NOT NULL,
    property text NOT NULL,
    -- Canonical JSON.
    value text NOT NULL,
    items integer NOT NULL,
    CONSTRAINT catalog_summaries_one_row_per_value PRIMARY KEY (collection_id, property, value),
    -- More removals than additions would mean that an Item was counted wrongly.
    CONSTRAINT catalog_summaries_items_are_not_negative CHECK (items >= 0)
) STRICT, WITHOUT ROWID
