-- Lineage: editions, so that a repair adds to what was told and erases nothing; and the outbox, which holds a batch until
-- readers and backend have it.

-- Which unit's Item stood before: what makes an Item a revision of an earlier one in the lineage.
ALTER TABLE catalog_items ADD COLUMN replaces_wal_id text
-- ;
CREATE TABLE lineage_emissions_in_editions (
    wal_id text NOT NULL,
    path text NOT NULL,
    -- Empty for the first telling of a unit; a repair that changed the Item adds one under its replay's id.
    edition text NOT NULL,
    -- OpenLineage run id or PROV activity id, as the path says.
    lineage_id text NOT NULL,
    batch_id text NOT NULL,
    -- What the Item said; null where the unit registered none, and in what was told before there were editions.
    content_sha256 text,
    -- A unit whose lineage is told twice would have duplicate edges.
    CONSTRAINT lineage_emissions_once_per_unit_path_and_edition PRIMARY KEY (wal_id, path, edition),
    -- A run or an activity leads back to one record.
    CONSTRAINT lineage_emissions_id_names_one_unit UNIQUE (lineage_id),
    CONSTRAINT lineage_emissions_path_is_known CHECK (path IN ('openlineage', 'prov')),
    CONSTRAINT lineage_emissions_edition_is_bounded CHECK (length(edition) <= 200),
    CONSTRAINT lineage_emissions_content_is_sha256
    CHECK (length(content_sha256) = 64 AND content_sha256 NOT GLOB '*[^0-9a-f]*'),
    -- A unit counts as told only while the batch that holds it is on record. Deferred, because which units a batch holds
    -- is known once their rows are in.
    CONSTRAINT lineage_emissions_have_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id)
    DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID
-- ;
INSERT INTO lineage_emissions_in_editions (wal_id, path, edition, lineage_id, batch_id, content_sha256)
SELECT wal_id, path, '', lineage_id, batch_id, NULL FROM lineage_emissions
-- ;
DROP TABLE lineage_emissions
-- ;
ALTER TABLE lineage_emissions_in_editions RENAME TO lineage_emissions
-- ;
CREATE INDEX lineage_emissions_by_batch ON lineage_emissions (batch_id)
-- ;
CREATE TRIGGER lineage_emissions_are_not_changed BEFORE UPDATE ON lineage_emissions
BEGIN
    SELECT RAISE(ABORT, 'lineage_is_append_only');
END
-- ;
CREATE TRIGGER lineage_emissions_are_not_deleted BEFORE DELETE ON lineage_emissions
BEGIN
    SELECT RAISE(ABORT, 'lineage_is_append_only');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger. A row that is there already is passed over, as the store's own
-- ON CONFLICT DO NOTHING would.
CREATE TRIGGER lineage_emissions_are_not_replaced BEFORE INSERT ON lineage_emissions
WHEN EXISTS (
    SELECT 1 FROM lineage_emissions AS r
    WHERE r.wal_id = NEW.wal_id AND r.path = NEW.path AND r.edition = NEW.edition
)
BEGIN
    SELECT RAISE(IGNORE);
END
-- ;
CREATE TRIGGER lineage_emissions_ids_are_not_replaced BEFORE INSERT ON lineage_emissions
WHEN EXISTS (SELECT 1 FROM lineage_emissions AS r WHERE r.lineage_id = NEW.lineage_id)
BEGIN
    SELECT CASE
        WHEN EXISTS (
            SELECT 1 FROM lineage_emissions AS r
            WHERE r.wal_id = NEW.wal_id AND r.path = NEW.path AND r.edition = NEW.edition
        ) THEN RAISE(IGNORE)
        ELSE RAISE(ABORT, 'lineage_emissions_id_names_one_unit')
    END;
END
-- ;
CREATE TRIGGER lineage_batches_are_not_deleted BEFORE DELETE ON lineage_batches
BEGIN
    SELECT RAISE(ABORT, 'lineage_is_append_only');
END
-- ;
CREATE TRIGGER lineage_batches_are_not_replaced BEFORE INSERT ON lineage_batches
WHEN EXISTS (SELECT 1 FROM lineage_batches AS r WHERE r.batch_id = NEW.batch_id OR r.href = NEW.href)
BEGIN
    SELECT RAISE(ABORT, 'lineage_is_append_only');
END
-- ;
-- What a batch told stays; only its way to readers and to the backend goes on, and never back.
CREATE TRIGGER lineage_batches_only_go_on BEFORE UPDATE ON lineage_batches
WHEN (
    NEW.batch_id, NEW.path, NEW.dataset, NEW.run_id, NEW.href, NEW.sha256, NEW.unit_count, NEW.created_at
) IS NOT (
    OLD.batch_id, OLD.path, OLD.dataset, OLD.run_id, OLD.href, OLD.sha256, OLD.unit_count, OLD.created_at
)
OR (OLD.state = 'published' AND (NEW.state, NEW.published_at) IS NOT (OLD.state, OLD.published_at))
OR (NEW.delivery <> OLD.delivery AND NOT (OLD.delivery = 'pending' AND NEW.delivery = 'delivered'))
BEGIN
    SELECT RAISE(ABORT, 'lineage_batches_only_go_on');
END
-- ;
-- What is still to be done with a batch: a row for each place that has not got it yet.
CREATE TABLE lineage_outbox (
    batch_id text NOT NULL,
    -- 'files' is the lineage root, where readers look; 'backend' is the configured OpenLineage backend.
    destination text NOT NULL,
    -- What the file will say (Zstandard) and its length in bytes. Null for a backend, which gets what readers see, and
    -- for a batch that an earlier release staged as a file.
    content blob,
    content_bytes integer,
    -- How often it was tried, and the number of the try that may still write this row.
    attempts integer NOT NULL,
    -- When it is tried next; while somebody is at it, when another may take over.
    next_attempt_at text NOT NULL,
    last_error text,
    -- For a backend: how many events were sent, from the first one on, and those among them that it did not take.
    events_done integer NOT NULL,
    not_taken text NOT NULL,
    CONSTRAINT lineage_outbox_one_row_per_destination PRIMARY KEY (batch_id, destination),
    CONSTRAINT lineage_outbox_has_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id),
    CONSTRAINT lineage_outbox_destination_is_known CHECK (destination IN ('files', 'backend')),
    CONSTRAINT lineage_outbox_content_is_for_files
    CHECK ((content IS NULL) = (content_bytes IS NULL) AND (content IS NULL OR destination = 'files')),
    CONSTRAINT lineage_outbox_counts_are_not_negative CHECK (attempts >= 0 AND events_done >= 0 AND content_bytes >= 0),
    -- An error is for a person to read, not for keeping a response's body.
    CONSTRAINT lineage_outbox_error_is_bounded CHECK (length(last_error) <= 500),
    CONSTRAINT lineage_outbox_not_taken_is_a_list CHECK (json_type(not_taken) = 'array')
) STRICT
-- ;
CREATE INDEX lineage_outbox_due ON lineage_outbox (destination, next_attempt_at)
-- ;
INSERT INTO lineage_outbox (batch_id, destination, attempts, next_attempt_at, events_done, not_taken)
SELECT batch_id, 'files', 0, created_at, 0, '[]' FROM lineage_batches WHERE state = 'staged'
UNION ALL
SELECT batch_id, 'backend', 0, created_at, 0, '[]' FROM lineage_batches WHERE delivery = 'pending'
-- ;
DROP INDEX lineage_batches_staged
-- ;
DROP INDEX lineage_batches_undelivered
-- ;
-- A row that went before its batch arrived would be lineage lost.
CREATE TRIGGER lineage_outbox_leaves_when_done BEFORE DELETE ON lineage_outbox
WHEN NOT EXISTS (
    SELECT 1 FROM lineage_batches AS r
    WHERE
        r.batch_id = OLD.batch_id
        AND CASE OLD.destination WHEN 'files' THEN r.state = 'published' ELSE r.delivery = 'delivered' END
)
BEGIN
    SELECT RAISE(ABORT, 'lineage_outbox_leaves_when_done');
END
-- ;
CREATE TRIGGER lineage_outbox_is_not_replaced BEFORE INSERT ON lineage_outbox
WHEN EXISTS (SELECT 1 FROM lineage_outbox AS r WHERE r.batch_id = NEW.batch_id AND r.destination = NEW.destination)
BEGIN
    SELECT RAISE(ABORT, 'lineage_outbox_leaves_when_done');
END
-- ;
CREATE TRIGGER lineage_outbox_keeps_its_content BEFORE UPDATE ON lineage_outbox
WHEN (NEW.batch_id, NEW.destination, NEW.content, NEW.content_bytes)
IS NOT (OLD.batch_id, OLD.destination, OLD.content, OLD.content_bytes)
BEGIN
    SELECT RAISE(ABORT, 'lineage_outbox_keeps_its_content');
END
