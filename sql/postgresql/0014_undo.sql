-- The undo log: what a run put into the catalog and what stood there before; and which lineage is withdrawn (PCS-03).

-- What stood in Item files before they were overwritten, by the hash of the bytes.
CREATE TABLE catalog_kept_files (
    sha256 text NOT NULL,
    -- Zstandard, and the length in bytes of what it holds.
    content bytea NOT NULL,
    content_bytes integer NOT NULL,
    CONSTRAINT catalog_kept_files_one_row_per_content PRIMARY KEY (sha256),
    CONSTRAINT catalog_kept_files_sha256_is_hex CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    CONSTRAINT catalog_kept_files_length_is_counted CHECK (content_bytes >= 0)
)
-- ;
-- A row per Item and attempt to write it, committed before a file takes its place: a crash leaves a file with its row, or
-- a row without its file. Whether the attempt came through is told by catalog_items.promotion_id.
CREATE TABLE catalog_promotions (
    -- Never given again: an Item that stands by it stands by this write and no other.
    promotion_id bigint GENERATED ALWAYS AS IDENTITY,
    -- Null for a write outside of any run, which nothing takes back.
    run_id text,
    dataset text NOT NULL,
    collection_id text NOT NULL,
    item_id text NOT NULL,
    partition_key text NOT NULL,
    -- Bytes of the file that was to be put there.
    after_sha256 text NOT NULL,
    -- What the index said before: null revision for nothing, null promotion for a row from before this log.
    before_promotion_id bigint,
    before_revision integer,
    -- Bytes of the file that stood there; null where none did.
    before_sha256 text,
    logged_at timestamptz NOT NULL,
    CONSTRAINT catalog_promotions_one_row_per_promotion PRIMARY KEY (promotion_id),
    CONSTRAINT catalog_promotions_after_is_sha256 CHECK (after_sha256 ~ '^[0-9a-f]{64}$'),
    -- Bytes that nobody has kept cannot be put back.
    CONSTRAINT catalog_promotions_before_is_kept FOREIGN KEY (before_sha256) REFERENCES catalog_kept_files (sha256),
    CONSTRAINT catalog_promotions_before_is_a_row CHECK (
        before_revision IS NOT NULL OR (before_promotion_id IS NULL AND before_sha256 IS NULL)
    )
)
-- ;
CREATE INDEX catalog_promotions_by_run ON catalog_promotions (run_id, collection_id)
-- ;
CREATE INDEX catalog_promotions_by_item ON catalog_promotions (collection_id, item_id)
-- ;
-- The index row that a promotion replaced; the columns are those of catalog_items.
CREATE TABLE catalog_replaced_items (
    promotion_id bigint NOT NULL,
    collection_id text NOT NULL,
    item_id text NOT NULL,
    partition_key text NOT NULL,
    page integer NOT NULL,
    content_sha256 text NOT NULL,
    object_uri text NOT NULL,
    wal_id text NOT NULL,
    precedence text NOT NULL,
    sequencer text NOT NULL,
    revision integer NOT NULL,
    west double precision,
    south double precision,
    east double precision,
    north double precision,
    start_at timestamptz NOT NULL,
    end_at timestamptz NOT NULL,
    summaries jsonb NOT NULL,
    updated_at timestamptz NOT NULL,
    replaces_wal_id text,
    before_promotion_id bigint,
    CONSTRAINT catalog_replaced_items_one_row_per_promotion PRIMARY KEY (promotion_id),
    CONSTRAINT catalog_replaced_items_promotion_is_logged
    FOREIGN KEY (promotion_id) REFERENCES catalog_promotions (promotion_id)
)
-- ;
-- Which runs were undone: a promotion of theirs up to this one is nothing to go back to.
CREATE TABLE catalog_withdrawals (
    collection_id text NOT NULL,
    dataset text NOT NULL,
    run_id text NOT NULL,
    up_to_promotion_id bigint NOT NULL,
    withdrawn_at timestamptz NOT NULL,
    CONSTRAINT catalog_withdrawals_once_per_promotion PRIMARY KEY (collection_id, dataset, run_id, up_to_promotion_id),
    CONSTRAINT catalog_withdrawals_promotion_is_logged
    FOREIGN KEY (up_to_promotion_id) REFERENCES catalog_promotions (promotion_id)
)
-- ;
-- The promotion that an Item stands by; null for one from before this log. No Item stands without its undo record.
ALTER TABLE catalog_items ADD COLUMN promotion_id bigint
CONSTRAINT catalog_items_promotion_is_logged REFERENCES catalog_promotions (promotion_id)
-- ;
-- Compressed already: another pass over it would only cost time.
ALTER TABLE catalog_kept_files ALTER COLUMN content SET STORAGE EXTERNAL
-- ;
CREATE TRIGGER catalog_kept_files_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON catalog_kept_files
FOR EACH STATEMENT EXECUTE FUNCTION lineage_refuse('undo_log_is_append_only')
-- ;
CREATE TRIGGER catalog_promotions_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON catalog_promotions
FOR EACH STATEMENT EXECUTE FUNCTION lineage_refuse('undo_log_is_append_only')
-- ;
CREATE TRIGGER catalog_replaced_items_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON catalog_replaced_items
FOR EACH STATEMENT EXECUTE FUNCTION lineage_refuse('undo_log_is_append_only')
-- ;
CREATE TRIGGER catalog_withdrawals_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON catalog_withdrawals
FOR EACH STATEMENT EXECUTE FUNCTION lineage_refuse('undo_log_is_append_only')
-- ;
-- Which batches of lineage are withdrawn, and the batch that tells it. What was told stays in its files.
CREATE TABLE lineage_invalidations (
    batch_id text NOT NULL,
    invalidated_by text NOT NULL,
    reason text NOT NULL,
    invalidated_at timestamptz NOT NULL,
    CONSTRAINT lineage_invalidations_once_per_batch PRIMARY KEY (batch_id),
    CONSTRAINT lineage_invalidations_batch_is_known FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id),
    -- Deferred, because which batches a transaction withdraws is known once their rows are in.
    CONSTRAINT lineage_invalidations_are_told FOREIGN KEY (invalidated_by) REFERENCES lineage_batches (batch_id)
    DEFERRABLE INITIALLY DEFERRED,
    -- Nothing can be withdrawn by the telling of it.
    CONSTRAINT lineage_invalidations_come_from_another_batch CHECK (invalidated_by <> batch_id),
    CONSTRAINT lineage_invalidations_reason_is_bounded CHECK (length(reason) BETWEEN 1 AND 200)
)
-- ;
CREATE INDEX lineage_batches_by_run ON lineage_batches (run_id, dataset)
-- ;
CREATE TRIGGER lineage_invalidations_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON lineage_invalidations
FOR EACH STATEMENT EXECUTE FUNCTION lineage_refuse('lineage_is_append_only')
