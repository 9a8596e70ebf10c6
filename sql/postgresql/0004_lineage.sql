-- Lineage: which unit's OpenLineage run and PROV activity stand in which file (transactional outbox of both paths).
CREATE TABLE lineage_batches (
    batch_id text NOT NULL,
    path text NOT NULL,
    dataset text NOT NULL,
    run_id text NOT NULL,
    -- Where readers find the file, relative to the lineage root.
    href text NOT NULL,
    sha256 text NOT NULL,
    unit_count integer NOT NULL,
    state text NOT NULL,
    -- What an OpenLineage backend got of it.
    delivery text NOT NULL,
    created_at timestamptz NOT NULL,
    published_at timestamptz,
    CONSTRAINT lineage_batches_one_row_per_content PRIMARY KEY (batch_id),
    -- Two batches in one file would overwrite each other.
    CONSTRAINT lineage_batches_one_file_each UNIQUE (href),
    CONSTRAINT lineage_batches_path_is_known CHECK (path IN ('openlineage', 'prov')),
    CONSTRAINT lineage_batches_state_is_known CHECK (state IN ('staged', 'published')),
    CONSTRAINT lineage_batches_published_has_time CHECK ((state = 'published') = (published_at IS NOT NULL)),
    CONSTRAINT lineage_batches_delivery_is_known CHECK (delivery IN ('none', 'pending', 'delivered')),
    -- Only OpenLineage has a backend, and it gets what readers see.
    CONSTRAINT lineage_batches_delivers_openlineage CHECK (delivery = 'none' OR path = 'openlineage'),
    CONSTRAINT lineage_batches_delivers_published CHECK (delivery <> 'delivered' OR state = 'published'),
    CONSTRAINT lineage_batches_sha256_is_hex CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    CONSTRAINT lineage_batches_is_not_empty CHECK (unit_count > 0)
)
-- ;
CREATE INDEX lineage_batches_staged ON lineage_batches (created_at) WHERE state = 'staged'
-- ;
CREATE INDEX lineage_batches_undelivered ON lineage_batches (created_at) WHERE delivery = 'pending'
-- ;
CREATE TABLE lineage_emissions (
    wal_id text NOT NULL,
    path text NOT NULL,
    -- OpenLineage run id or PROV activity id, as the path says.
    lineage_id text NOT NULL,
    batch_id text NOT NULL,
    -- A unit whose lineage is emitted twice would have duplicate edges.
    CONSTRAINT lineage_emissions_once_per_unit_and_path PRIMARY KEY (wal_id, path),
    -- A run or an activity leads back to one record.
    CONSTRAINT lineage_emissions_id_names_one_unit UNIQUE (lineage_id),
    CONSTRAINT lineage_emissions_path_is_known CHECK (path IN ('openlineage', 'prov')),
    -- A unit counts as emitted only while the file that holds it is on record.
    CONSTRAINT lineage_emissions_have_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id)
)
-- ;
CREATE INDEX lineage_emissions_by_batch ON lineage_emissions (batch_id)
