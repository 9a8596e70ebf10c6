-- Statements of the catalog's follower `stac-api` for a STAC API's database: pgstac's tables and functions (0.10), and
-- two tables of ours in the schema `kfm`. search_path is pgstac, public; geometry functions are PostGIS's.

-- name: lock_installation
SELECT pg_advisory_xact_lock(hashtextextended('kfm.stac_api', 0));

-- name: installed
SELECT
    to_regclass('pgstac.migrations') IS NOT NULL AS has_pgstac,
    to_regclass('kfm.stac_collections') IS NOT NULL AS has_tables;

-- name: version
SELECT pgstac.get_version() AS version;

-- name: create_tables
CREATE SCHEMA IF NOT EXISTS kfm;

-- The follower's position in each collection, written in the transaction of its Items.
CREATE TABLE IF NOT EXISTS kfm.stac_collections (
    collection_id text NOT NULL,
    -- The last change of the catalog that the Items contain, and the time of the change.
    change_id bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    applied_at timestamptz NOT NULL,
    CONSTRAINT stac_collections_one_row_each PRIMARY KEY (collection_id)
);

-- Withdrawn Items with the withdrawing change, so that a late writer of an older change does not write them again.
CREATE TABLE IF NOT EXISTS kfm.stac_withdrawn (
    collection_id text NOT NULL,
    item_id text NOT NULL,
    change_id bigint NOT NULL,
    CONSTRAINT stac_withdrawn_one_row_each PRIMARY KEY (collection_id, item_id)
);

GRANT USAGE ON SCHEMA kfm TO pgstac_ingest;

GRANT SELECT, INSERT, UPDATE, DELETE ON kfm.stac_collections, kfm.stac_withdrawn TO pgstac_ingest;

-- name: set_up
-- Switches off pgstac's queue, which would defer work beyond the transaction, and its computation of extents, because
-- the catalog's Collections have their extents already.
SELECT
    set_config('search_path', 'pgstac, public', true),
    set_config('TimeZone', 'UTC', true),
    set_config('pgstac.use_queue', 'false', true),
    set_config('pgstac.update_collection_extent', 'false', true),
    set_config('lock_timeout', :lock_timeout, true),
    set_config('statement_timeout', :statement_timeout, true),
    set_config('idle_in_transaction_session_timeout', :idle_timeout, true);

-- name: hurry
SELECT set_config('lock_timeout', :lock_timeout, true);

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('kfm.stac_api ' || CAST(:collection_id AS text), 0));

-- name: come_to
SELECT change_id, changed_at FROM kfm.stac_collections WHERE collection_id = :collection_id;

-- name: move
INSERT INTO kfm.stac_collections AS known (collection_id, change_id, changed_at, applied_at)
VALUES (:collection_id, :change_id, :changed_at, clock_timestamp())
ON CONFLICT (collection_id) DO UPDATE SET
    change_id = greatest(known.change_id, excluded.change_id),
    changed_at = greatest(known.changed_at, excluded.changed_at),
    applied_at = excluded.applied_at;

-- name: collection
SELECT CAST(content AS text) AS content FROM pgstac.collections WHERE id = :collection_id;

-- name: has_collection
SELECT content = CAST(:content AS jsonb) AS same FROM pgstac.collections WHERE id = :collection_id;

-- name: put_collection
-- Only the first writer of a Collection decides its partitioning.
INSERT INTO pgstac.collections (content, partition_trunc)
VALUES (CAST(:content AS jsonb), :partition_trunc)
ON CONFLICT (id) DO UPDATE SET content = excluded.content;

-- name: drop_collection
SELECT pgstac.delete_collection(id) FROM pgstac.collections WHERE id = :collection_id;

-- name: base_item
-- Always one row; its values are null if there is no such Collection.
SELECT base_item_id, CAST(base_item AS text) AS base_item FROM pgstac.current_base_item(:collection_id);

-- name: make_partitions
-- Each partition has its whole time range as bounds from the start, so that later Items change no constraint; a change
-- would lock readers out.
WITH wanted AS (
    SELECT DISTINCT part.partition_name, part.partition_range
    FROM unnest(CAST(:times AS timestamptz [])) AS given (moment)
    CROSS JOIN LATERAL pgstac.partition_name(:collection_id, given.moment) AS part
)
SELECT pgstac.check_partition(:collection_id, wanted.partition_range, tstzrange('-infinity', 'infinity', '[]'))
FROM wanted
WHERE NOT EXISTS (SELECT 1 FROM pgstac.partition_stats AS known WHERE known.partition = wanted.partition_name)
ORDER BY wanted.partition_name;

-- name: loosen_partitions
-- pgstac's maintenance narrows partitions to their content; this statement widens them again, without validation.
WITH wanted AS (
    SELECT DISTINCT part.partition_name
    FROM unnest(CAST(:times AS timestamptz [])) AS given (moment)
    CROSS JOIN LATERAL pgstac.partition_name(:collection_id, given.moment) AS part
)
SELECT pgstac.drop_table_constraints(wanted.partition_name)
FROM wanted
CROSS JOIN LATERAL pgstac.partition_catalog_meta(wanted.partition_name) AS meta
WHERE
    NOT meta.constraint_dtrange @> meta.partition_dtrange
    OR NOT meta.constraint_edtrange @> tstzrange('-infinity', 'infinity', '()')
ORDER BY wanted.partition_name;

-- name: make_stage
CREATE TEMPORARY TABLE kfm_stage (
    id text NOT NULL,
    change_id bigint NOT NULL,
    -- GeoJSON; null for an Item without geometry.
    geometry jsonb,
    start_at timestamptz,
    end_at timestamptz,
    -- Null for a withdrawn Item.
    content jsonb,
    private jsonb
) ON COMMIT DROP;

-- name: look_up_by_id
-- PostgreSQL estimates a temporary table at ten times its size. So it would join by reading a whole partition (half a
-- second for 200,000 Items, while index lookups take a millisecond), and would compile each statement.
SELECT
    set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('jit', 'off', true);

-- name: skip_applied
DELETE FROM kfm_stage AS staged
USING pgstac.items AS item
WHERE
    item.collection = :collection_id
    AND item.id = staged.id
    AND CAST(item.private ->> 'change_id' AS bigint) >= staged.change_id;

-- name: skip_withdrawn
DELETE FROM kfm_stage AS staged
USING kfm.stac_withdrawn AS gone
WHERE
    gone.collection_id = :collection_id
    AND gone.item_id = staged.id
    AND gone.change_id >= staged.change_id;

-- name: take_out
DELETE FROM pgstac.items AS item
USING kfm_stage AS staged
WHERE item.collection = :collection_id AND item.id = staged.id;

-- name: put_in
INSERT INTO pgstac.items (id, geometry, collection, datetime, end_datetime, content, private)
SELECT
    id, coalesce(ST_GeomFromGeoJSON(geometry), ST_GeomFromText('GEOMETRYCOLLECTION EMPTY', 4326)),
    :collection_id, start_at, end_at, content, private
FROM kfm_stage
WHERE content IS NOT NULL;

-- name: remember_withdrawn
INSERT INTO kfm.stac_withdrawn (collection_id, item_id, change_id)
SELECT :collection_id, id, change_id
FROM kfm_stage
WHERE content IS NULL
ON CONFLICT (collection_id, item_id) DO UPDATE SET change_id = excluded.change_id;

-- name: forget_withdrawn
DELETE FROM kfm.stac_withdrawn AS gone
USING kfm_stage AS staged
WHERE gone.collection_id = :collection_id AND gone.item_id = staged.id AND staged.content IS NOT NULL;

-- name: differing
SELECT staged.id
FROM kfm_stage AS staged
LEFT JOIN pgstac.items AS item ON item.collection = :collection_id AND item.id = staged.id
WHERE
    item.content IS DISTINCT FROM staged.content
    OR item.datetime IS DISTINCT FROM staged.start_at
    OR item.end_datetime IS DISTINCT FROM staged.end_at
    OR (staged.geometry IS NOT NULL AND CAST(ST_AsGeoJSON(item.geometry, 20) AS jsonb) <> staged.geometry)
ORDER BY staged.id
LIMIT 5;

-- name: has_items
SELECT EXISTS (SELECT 1 FROM pgstac.items WHERE collection = :collection_id) AS has_items;

-- name: forget_collection
WITH cursors AS (DELETE FROM kfm.stac_collections WHERE collection_id = :collection_id)
DELETE FROM kfm.stac_withdrawn WHERE collection_id = :collection_id;

-- name: make_expected
CREATE TEMPORARY TABLE kfm_expected (
    id text NOT NULL,
    day text NOT NULL,
    content_sha256 text NOT NULL
) ON COMMIT DROP;

-- name: compare
-- content_nonhydrated is the form that pgstac gives to the API, which merges it with the base item.
SELECT
    coalesce(expected.id, item.id) AS id,
    coalesce(
        expected.day, item.private ->> 'partition', to_char(item.datetime, 'YYYY-MM-DD')
    ) AS day,
    expected.content_sha256,
    CASE WHEN item.id IS NOT NULL THEN CAST(content_nonhydrated(item) AS text) END AS answer
FROM kfm_expected AS expected
FULL JOIN (SELECT * FROM pgstac.items WHERE collection = :collection_id) AS item ON item.id = expected.id;
