-- The idempotent-node pattern: what a node intended, what it last applied, and what it made (IEN-03).
CREATE TABLE etl_wal (
    wal_id integer PRIMARY KEY AUTOINCREMENT,
    run_id text NOT NULL,
    node text NOT NULL,
    step text NOT NULL,
    -- All that is needed to run the node again: input manifest, parameters, code, context.
    payload text NOT NULL,
    content_hash text NOT NULL,
    status text NOT NULL,
    started_at text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    applied_at text,
    CONSTRAINT etl_wal_status_is_known CHECK (status IN ('PENDING', 'APPLIED', 'SKIPPED', 'FAILED')),
    -- Runs of other tools join on it.
    CONSTRAINT etl_wal_run_id_is_uuid CHECK (
        length(run_id) = 36 AND run_id GLOB '????????-????-????-????-????????????'
        AND replace(run_id, '-', '') NOT GLOB '*[^0-9a-f]*'
    ),
    CONSTRAINT etl_wal_content_hash_is_sha256
    CHECK (length(content_hash) = 64 AND content_hash NOT GLOB '*[^0-9a-f]*'),
    CONSTRAINT etl_wal_payload_is_object CHECK (json_type(payload) = 'object'),
    -- An effect without its time, or a time without an effect, would be told wrongly for ever.
    CONSTRAINT etl_wal_applied_has_a_time CHECK ((status = 'APPLIED') = (applied_at IS NOT NULL))
) STRICT
-- ;
-- Whatever the workers believe, one content takes effect once.
CREATE UNIQUE INDEX etl_wal_content_is_applied_once ON etl_wal (content_hash) WHERE status = 'APPLIED'
-- ;
CREATE INDEX etl_wal_unresolved ON etl_wal (node, wal_id) WHERE status IN ('PENDING', 'FAILED')
-- ;
CREATE INDEX etl_wal_by_run ON etl_wal (run_id, wal_id)
-- ;
-- An intent comes before its effect, so that a crash between the two leaves a trace.
CREATE TRIGGER etl_wal_begins_pending BEFORE INSERT ON etl_wal
WHEN NEW.status <> 'PENDING'
BEGIN
    SELECT RAISE(ABORT, 'etl_wal_begins_pending');
END
-- ;
CREATE TRIGGER etl_wal_move_is_legal BEFORE UPDATE ON etl_wal
WHEN
    OLD.status || '>' || NEW.status NOT IN (
        'PENDING>APPLIED', 'PENDING>SKIPPED', 'PENDING>FAILED', 'FAILED>APPLIED', 'FAILED>SKIPPED'
    )
    OR (NEW.wal_id, NEW.run_id, NEW.node, NEW.step, NEW.payload, NEW.content_hash, NEW.started_at)
    IS NOT
    (OLD.wal_id, OLD.run_id, OLD.node, OLD.step, OLD.payload, OLD.content_hash, OLD.started_at)
BEGIN
    SELECT RAISE(ABORT, 'etl_wal_move_is_legal');
END
-- ;
CREATE TRIGGER etl_wal_is_not_deleted BEFORE DELETE ON etl_wal
BEGIN
    SELECT RAISE(ABORT, 'etl_wal_is_append_only');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER etl_wal_is_not_replaced BEFORE INSERT ON etl_wal
WHEN EXISTS (SELECT 1 FROM etl_wal AS r WHERE r.wal_id = NEW.wal_id)
BEGIN
    SELECT RAISE(ABORT, 'etl_wal_is_append_only');
END
-- ;
CREATE TABLE node_output (
    content_hash text NOT NULL,
    record text NOT NULL,
    lineage text,
    valid_from text,
    -- Null while it is what its node last made.
    valid_to text,
    CONSTRAINT node_output_one_row_per_content PRIMARY KEY (content_hash),
    CONSTRAINT node_output_content_hash_is_sha256
    CHECK (length(content_hash) = 64 AND content_hash NOT GLOB '*[^0-9a-f]*'),
    CONSTRAINT node_output_record_is_json CHECK (json_valid(record)),
    CONSTRAINT node_output_lineage_is_json CHECK (lineage IS NULL OR json_valid(lineage)),
    -- A window that ends before it begins holds no moment.
    CONSTRAINT node_output_window_is_one CHECK (valid_to IS NULL OR valid_to >= valid_from)
) STRICT
-- ;
-- Outputs are immutable; only the end of their validity moves, when a newer one takes over or their content comes back.
CREATE TRIGGER node_output_is_immutable BEFORE UPDATE ON node_output
WHEN
    (NEW.content_hash, NEW.record, NEW.lineage, NEW.valid_from)
    IS NOT (OLD.content_hash, OLD.record, OLD.lineage, OLD.valid_from)
    OR (OLD.valid_to IS NOT NULL AND NEW.valid_to IS NOT NULL)
BEGIN
    SELECT RAISE(ABORT, 'node_output_is_immutable');
END
-- ;
CREATE TRIGGER node_output_is_not_deleted BEFORE DELETE ON node_output
BEGIN
    SELECT RAISE(ABORT, 'node_output_is_kept');
END
-- ;
CREATE TRIGGER node_output_is_not_replaced BEFORE INSERT ON node_output
WHEN EXISTS (SELECT 1 FROM node_output AS r WHERE r.content_hash = NEW.content_hash)
BEGIN
    SELECT RAISE(ABORT, 'node_output_is_kept');
END
-- ;
-- What counts as applied can be handed on.
CREATE TRIGGER etl_wal_applied_has_an_output BEFORE UPDATE ON etl_wal
WHEN
    NEW.status = 'APPLIED'
    AND NOT EXISTS (SELECT 1 FROM node_output AS o WHERE o.content_hash = NEW.content_hash)
BEGIN
    SELECT RAISE(ABORT, 'etl_wal_applied_has_an_output');
END
-- ;
CREATE TABLE etl_checkpoint (
    node text NOT NULL,
    last_applied_hash text NOT NULL,
    updated_at text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    CONSTRAINT etl_checkpoint_one_row_per_node PRIMARY KEY (node),
    -- A checkpoint that names nothing would skip work that was never done.
    CONSTRAINT etl_checkpoint_names_an_output
    FOREIGN KEY (last_applied_hash) REFERENCES node_output (content_hash)
) STRICT
