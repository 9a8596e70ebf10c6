-- The catalog's index: what stands in the published STAC catalog. Files are written from it, never the other way round.
CREATE TABLE catalog_collections (
    collection_id text NOT NULL,
    dataset text NOT NULL,
    title text NOT NULL,
    CONSTRAINT catalog_collections_one_row_each PRIMARY KEY (collection_id)
)
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
    west double precision,
    south double precision,
    east double precision,
    north double precision,
    start_at timestamptz NOT NULL,
    end_at timestamptz NOT NULL,
    -- Values that the Collection summarises, by property.
    summaries jsonb NOT NULL,
    updated_at timestamptz NOT NULL,
    -- An Item stands once, whatever wrote it.
    CONSTRAINT catalog_items_one_row_per_item PRIMARY KEY (collection_id, item_id),
    CONSTRAINT catalog_items_collection_exists FOREIGN KEY (collection_id) REFERENCES catalog_collections (collection_id),
    CONSTRAINT catalog_items_page_counts_from_one CHECK (page >= 1),
    CONSTRAINT catalog_items_revision_counts_from_one CHECK (revision >= 1),
    CONSTRAINT catalog_items_content_is_sha256 CHECK (content_sha256 ~ '^[0-9a-f]{64}$'),
    CONSTRAINT catalog_items_bbox_is_whole CHECK (num_nulls(west, south, east, north) IN (0, 4)),
    CONSTRAINT catalog_items_time_range_is_ordered CHECK (start_at <= end_at),
    CONSTRAINT catalog_items_summaries_is_object CHECK (jsonb_typeof(summaries) = 'object')
)
-- ;
-- Serves a page's links and a page's extent.
CREATE UNIQUE INDEX catalog_items_by_page ON catalog_items (collection_id, partition_key, page, item_id)
-- ;
CREATE FUNCTION catalog_items_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_NAME USING ERRCODE = 'check_violation';
END
$$
-- ;
-- A write that did not see the revision it replaces would lose the other writer's update.
CREATE TRIGGER catalog_items_revision_grows_by_one BEFORE UPDATE ON catalog_items
FOR EACH ROW WHEN (NEW.revision <> OLD.revision + 1)
EXECUTE FUNCTION catalog_items_refuse()
-- ;
-- An Item that moved would leave its old file and its old link behind.
CREATE TRIGGER catalog_items_keep_their_home BEFORE UPDATE ON catalog_items
FOR EACH ROW WHEN (NEW.partition_key <> OLD.partition_key OR NEW.page <> OLD.page)
EXECUTE FUNCTION catalog_items_refuse()
-- ;
-- One row per page, recounted from its Items: extents of days and collections without a look at every Item.
CREATE TABLE catalog_pages (
    collection_id text NOT NULL,
    partition_key text NOT NULL,
    page integer NOT NULL,
    items integer NOT NULL,
    west double precision,
    south double precision,
    east double precision,
    north double precision,
    -- The same longitudes counted from 0 to 360 degrees, for what lies around the antimeridian.
    west_360 double precision,
    east_360 double precision,
    over_antimeridian integer NOT NULL,
    over_greenwich integer NOT NULL,
    start_at timestamptz NOT NULL,
    end_at timestamptz NOT NULL,
    CONSTRAINT catalog_pages_one_row_each PRIMARY KEY (collection_id, partition_key, page),
    CONSTRAINT catalog_pages_are_not_empty CHECK (items >= 1)
)
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
)
