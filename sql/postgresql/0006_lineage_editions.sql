-- Lineage: editions, so that a repair adds to what was told and erases nothing; and the outbox, which holds a batch until
-- readers and backend have it.

-- Which unit's Item stood before: what makes an Item a revision of an earlier one in the lineage.
ALTER TABLE catalog_items ADD COLUMN replaces_wal_id text
-- ;
ALTER TABLE lineage_emissions
-- Empty for the first telling of a unit; a repair that changed the Item adds one under its replay's id.
ADD COLUMN edition text NOT NULL DEFAULT '',
-- What the Item said; null where the unit registered none, and in what was told before there were editions.
ADD COLUMN content_sha256 text,
DROP CONSTRAINT lineage_emissions_once_per_unit_and_path,
-- A unit whose lineage is told twice would have duplicate edges.
ADD CONSTRAINT lineage_emissions_once_per_unit_path_and_edition PRIMARY KEY (wal_id, path, edition),
ADD CONSTRAINT lineage_emissions_edition_is_bounded CHECK (length(edition) <= 200),
ADD CONSTRAINT lineage_emissions_content_is_sha256 CHECK (content_sha256 ~ '^[0-9a-f]{64}$'),
-- A unit counts as told only while the batch that holds it is on record. Deferred, because which units a batch holds is
-- known once their rows are in.
ALTER CONSTRAINT lineage_emissions_have_a_batch DEFERRABLE INITIALLY DEFERRED
-- ;
ALTER TABLE lineage_emissions ALTER COLUMN edition DROP DEFAULT
-- ;
CREATE FUNCTION lineage_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END
$$
-- ;
CREATE TRIGGER lineage_emissions_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON lineage_emissions
FOR EACH STATEMENT EXECUTE FUNCTION lineage_refuse('lineage_is_append_only')
-- ;
CREATE TRIGGER lineage_batches_are_kept BEFORE DELETE OR TRUNCATE ON lineage_batches
FOR EACH STATEMENT EXECUTE FUNCTION lineage_refuse('lineage_is_append_only')
-- ;
-- What a batch told stays; only its way to readers and to the backend goes on, and never back.
CREATE TRIGGER lineage_batches_only_go_on BEFORE UPDATE ON lineage_batches
FOR EACH ROW WHEN (
    (NEW.batch_id, NEW.path, NEW.dataset, NEW.run_id, NEW.href, NEW.sha256, NEW.unit_count, NEW.created_at)
    IS DISTINCT FROM
    (OLD.batch_id, OLD.path, OLD.dataset, OLD.run_id, OLD.href, OLD.sha256, OLD.unit_count, OLD.created_at)
    OR (OLD.state = 'published' AND (NEW.state, NEW.published_at) IS DISTINCT FROM (OLD.state, OLD.published_at))
    OR (NEW.delivery <> OLD.delivery AND NOT (OLD.delivery = 'pending' AND NEW.delivery = 'delivered'))
)
EXECUTE FUNCTION lineage_refuse('lineage_batches_only_go_on')
-- ;
-- What is still to be done with a batch: a row for each place that has not got it yet.
CREATE TABLE lineage_outbox (
    batch_id text NOT NULL,
    -- 'files' is the lineage root, where readers look; 'backend' is the configured OpenLineage backend.
    destination text NOT NULL,
    -- What the file will say (Zstandard) and its length in bytes. Null for a backend, which gets what readers see, and
    -- for a batch that an earlier release staged as a file.
    content bytea,
    content_bytes integer,
    -- How often it was tried, and the number of the try that may still write this row.
    attempts integer NOT NULL,
    -- When it is tried next; while somebody is at it, when another may take over.
    next_attempt_at timestamptz NOT NULL,
    last_error text,
    -- For a backend: how many events were sent, from the first one on, and those among them that it did not take.
    events_done integer NOT NULL,
    not_taken jsonb NOT NULL,
    CONSTRAINT lineage_outbox_one_row_per_destination PRIMARY KEY (batch_id, destination),
    CONSTRAINT lineage_outbox_has_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id),
    CONSTRAINT lineage_outbox_destination_is_known CHECK (destination IN ('files', 'backend')),
    CONSTRAINT lineage_outbox_content_is_for_files
    CHECK ((content IS NULL) = (content_bytes IS NULL) AND (content IS NULL OR destination = 'files')),
    CONSTRAINT lineage_outbox_counts_are_not_negative CHECK (attempts >= 0 AND events_done >= 0 AND content_bytes >= 0),
    -- An error is for a person to read, not for keeping a response's body.
    CONSTRAINT lineage_outbox_error_is_bounded CHECK (length(last_error) <= 500),
    CONSTRAINT lineage_outbox_not_taken_is_a_list CHECK (jsonb_typeof(not_taken) = 'array')
)
-- ;
-- Compressed already: another pass over it would only cost time.
ALTER TABLE lineage_outbox ALTER COLUMN content SET STORAGE EXTERNAL
-- ;
CREATE INDEX lineage_outbox_due ON lineage_outbox (destination, next_attempt_at)
-- ;
INSERT INTO lineage_outbox (batch_id, destination, attempts, next_attempt_at, events_done, not_taken)
SELECT batch_id, 'files', 0, created_at, 0, '[]'::jsonb FROM lineage_batches WHERE state = 'staged'
UNION ALL
SELECT batch_id, 'backend', 0, created_at, 0, '[]'::jsonb FROM lineage_batches WHERE delivery = 'pending'
-- ;
DROP INDEX lineage_batches_staged
-- ;
DROP INDEX lineage_batches_undelivered
-- ;
-- A row that went before its batch arrived would be lineage lost.
CREATE FUNCTION lineage_outbox_leaves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM lineage_batches AS r
        WHERE
            r.batch_id = OLD.batch_id
            AND CASE OLD.destination WHEN 'files' THEN r.state = 'published' ELSE r.delivery = 'delivered' END
    ) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'lineage_outbox_leaves_when_done'
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END
$$
-- ;
CREATE TRIGGER lineage_outbox_leaves_when_done BEFORE DELETE ON lineage_outbox
FOR EACH ROW EXECUTE FUNCTION lineage_outbox_leaves()
-- ;
CREATE TRIGGER lineage_outbox_is_not_truncated BEFORE TRUNCATE ON lineage_outbox
FOR EACH STATEMENT EXECUTE FUNCTION lineage_refuse('lineage_outbox_leaves_when_done')
-- ;
CREATE TRIGGER lineage_outbox_keeps_its_content BEFORE UPDATE ON lineage_outbox
FOR EACH ROW WHEN (
    (NEW.batch_id, NEW.destination, NEW.content, NEW.content_bytes)
    IS DISTINCT FROM (OLD.batch_id, OLD.destination, OLD.content, OLD.content_bytes)
)
EXECUTE FUNCTION lineage_refuse('lineage_outbox_keeps_its_content')
