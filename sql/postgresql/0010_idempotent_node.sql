-- The idempotent-node pattern: what a node intended, what it last applied, and what it made (IEN-03).
CREATE TABLE etl_wal (
    wal_id bigserial NOT NULL,
    run_id uuid NOT NULL,
    node text NOT NULL,
    step text NOT NULL,
    -- All that is needed to run the node again: input manifest, parameters, code, context.
    payload jsonb NOT NULL,
    content_hash text NOT NULL,
    status text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    applied_at timestamptz,
    CONSTRAINT etl_wal_one_row_per_intent PRIMARY KEY (wal_id),
    CONSTRAINT etl_wal_status_is_known CHECK (status IN ('PENDING', 'APPLIED', 'SKIPPED', 'FAILED')),
    CONSTRAINT etl_wal_content_hash_is_sha256 CHECK (content_hash ~ '^[0-9a-f]{64}$'),
    CONSTRAINT etl_wal_payload_is_object CHECK (jsonb_typeof(payload) = 'object'),
    -- An effect without its time, or a time without an effect, would be told wrongly for ever.
    CONSTRAINT etl_wal_applied_has_a_time CHECK ((status = 'APPLIED') = (applied_at IS NOT NULL))
)
-- ;
-- Whatever the workers believe, one content takes effect once.
CREATE UNIQUE INDEX etl_wal_content_is_applied_once ON etl_wal (content_hash) WHERE status = 'APPLIED'
-- ;
CREATE INDEX etl_wal_unresolved ON etl_wal (node, wal_id) WHERE status IN ('PENDING', 'FAILED')
-- ;
CREATE INDEX etl_wal_by_run ON etl_wal (run_id, wal_id)
-- ;
CREATE TABLE node_output (
    content_hash text NOT NULL,
    record jsonb NOT NULL,
    lineage jsonb,
    valid_from timestamptz,
    -- Null while it is what its node last made.
    valid_to timestamptz,
    CONSTRAINT node_output_one_row_per_content PRIMARY KEY (content_hash),
    CONSTRAINT node_output_content_hash_is_sha256 CHECK (content_hash ~ '^[0-9a-f]{64}$'),
    -- A window that ends before it begins holds no moment.
    CONSTRAINT node_output_window_is_one CHECK (valid_to IS NULL OR valid_to >= valid_from)
)
-- ;
CREATE TABLE etl_checkpoint (
    node text NOT NULL,
    last_applied_hash text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT etl_checkpoint_one_row_per_node PRIMARY KEY (node),
    -- A checkpoint that names nothing would skip work that was never done.
    CONSTRAINT etl_checkpoint_names_an_output
    FOREIGN KEY (last_applied_hash) REFERENCES node_output (content_hash)
)
-- ;
CREATE FUNCTION etl_wal_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'etl_wal_is_append_only' USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP = 'INSERT' THEN
        -- An intent comes before its effect, so that a crash between the two leaves a trace.
        IF NEW.status <> 'PENDING' THEN
            RAISE EXCEPTION 'etl_wal_begins_pending' USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF OLD.status || '>' || NEW.status NOT IN (
        'PENDING>APPLIED', 'PENDING>SKIPPED', 'PENDING>FAILED', 'FAILED>APPLIED', 'FAILED>SKIPPED'
    ) OR (NEW.wal_id, NEW.run_id, NEW.node, NEW.step, NEW.payload, NEW.content_hash, NEW.started_at)
        IS DISTINCT FROM
        (OLD.wal_id, OLD.run_id, OLD.node, OLD.step, OLD.payload, OLD.content_hash, OLD.started_at)
    THEN
        RAISE EXCEPTION 'etl_wal_move_is_legal' USING ERRCODE = 'restrict_violation';
    END IF;
    -- What counts as applied can be handed on.
    IF NEW.status = 'APPLIED'
        AND NOT EXISTS (SELECT 1 FROM node_output AS o WHERE o.content_hash = NEW.content_hash)
    THEN
        RAISE EXCEPTION 'etl_wal_applied_has_an_output' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER etl_wal_is_guarded BEFORE INSERT OR UPDATE OR DELETE ON etl_wal
FOR EACH ROW EXECUTE FUNCTION etl_wal_guard()
-- ;
CREATE TRIGGER etl_wal_is_not_truncated BEFORE TRUNCATE ON etl_wal
FOR EACH STATEMENT EXECUTE FUNCTION etl_wal_guard()
-- ;
-- Outputs are immutable; only the end of their validity moves, when a newer one takes over or their content comes back.
CREATE FUNCTION node_output_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        RAISE EXCEPTION 'node_output_is_kept' USING ERRCODE = 'restrict_violation';
    END IF;
    IF (NEW.content_hash, NEW.record, NEW.lineage, NEW.valid_from)
        IS DISTINCT FROM (OLD.content_hash, OLD.record, OLD.lineage, OLD.valid_from)
        OR (OLD.valid_to IS NOT NULL AND NEW.valid_to IS NOT NULL)
    THEN
        RAISE EXCEPTION 'node_output_is_immutable' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER node_output_is_guarded BEFORE UPDATE OR DELETE ON node_output
FOR EACH ROW EXECUTE FUNCTION node_output_guard()
-- ;
CREATE TRIGGER node_output_is_not_truncated BEFORE TRUNCATE ON node_output
FOR EACH STATEMENT EXECUTE FUNCTION node_output_guard()
