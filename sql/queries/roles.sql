-- Rights of the roles of a deployment and its retention, which the owner grants; SQLite has no roles.

-- name: may_migrate
-- Whether this role owns the tables or, if there are no tables, may create them; and whether it may only read, like the
-- role of retention (below).
SELECT current_user AS role, coalesce(
    (
        SELECT pg_has_role(current_user, c.relowner, 'USAGE') FROM pg_class AS c
        WHERE c.oid = to_regclass('schema_version')
    ),
    has_schema_privilege(current_user, current_schema(), 'CREATE'),
    FALSE
) AS may_migrate,
coalesce(
    has_table_privilege(current_user, to_regclass('nodd_wal_records'), 'SELECT')
    AND NOT has_table_privilege(current_user, to_regclass('nodd_wal_records'), 'INSERT'),
    FALSE
) AS only_reads;

-- name: lacking
-- A table that this role cannot read, because the table was created after the grants.
SELECT c.relname AS relation FROM pg_class AS c
INNER JOIN pg_class AS ours ON c.relnamespace = ours.relnamespace AND c.relowner = ours.relowner
WHERE
    ours.oid = to_regclass('schema_version') AND c.relkind IN ('r', 'p', 'v') AND NOT has_table_privilege(current_user, c.oid, 'SELECT')
ORDER BY c.relname
LIMIT 1;

-- name: create
-- No row if the role exists. The role may log in; the server determines how it authenticates (password, certificate).
SELECT format('CREATE ROLE %I LOGIN', CAST(:role AS text)) AS statement
WHERE NOT EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = :role);

-- name: decisions
-- Every table and view of the schema with a deployment's rights. UPDATE names its columns, because a deployment may not
-- change a row's identity. DELETE is granted if the product deletes rows; triggers decide which rows may be deleted.
WITH decision (relation, rights) AS (
    VALUES
    -- Received messages and units, and their status.
    ('nodd_wal_records', 'SELECT, INSERT, UPDATE (status, attempts, last_attempt_at, last_error_code, '
     || 'last_error_message, integrity_status, metadata_status, stac_status, provenance_status, stac_item_id, '
     || 'stac_collection_id, stac_item_href, ingest_run_id, worker_id, replay_reason, updated_at, version, '
     || 'next_attempt_at, changed_by, change_reason, lane, replay_run_id, batch_limit)'),
    ('kfm_units', 'SELECT'),
    ('nodd_wal_transitions', 'SELECT, INSERT'),
    ('metric_totals', 'SELECT, INSERT, UPDATE (amount), DELETE'),
    ('nodd_wal_deliveries', 'SELECT, INSERT, UPDATE (queue, receipt_handle, receive_count, received_at, state, '
     || 'signature, settled_at)'),
    ('nodd_wal_delivery_units', 'SELECT, INSERT'),
    ('rejected_messages', 'SELECT, INSERT'),
    ('ignored_records', 'SELECT, INSERT'),
    ('nodd_wal_supersessions', 'SELECT, INSERT'),
    ('nodd_wal_outcomes', 'SELECT, INSERT'),
    ('size_peers', 'SELECT, INSERT, UPDATE (sizes)'),
    ('nodd_feeds', 'SELECT, INSERT, UPDATE (looked_until)'),
    ('nodd_listed_days', 'SELECT, INSERT, UPDATE (listed_at)'),
    ('nodd_gaps', 'SELECT, INSERT, UPDATE (expected, seen, closed_at, repaired_by)'),
    ('kfm_gaps', 'SELECT'),
    ('nodd_arrivals', 'SELECT, INSERT, UPDATE (objects, classes, leads)'),
    ('nodd_wal_leases', 'SELECT, INSERT, UPDATE (worker_id, renewed_at, expires_at), DELETE'),
    -- Decisions.
    ('governance_log', 'SELECT, INSERT'),
    ('deployment', 'SELECT, INSERT'),
    ('override_units', 'SELECT, INSERT'),
    ('kill_switches', 'SELECT, INSERT, UPDATE (released_at, released_by, release_reason)'),
    ('quarantine_cases', 'SELECT, INSERT, UPDATE (evidence_uri, evidence_sha256, collected_at, state, closed_at, '
     || 'closing_entry)'),
    ('replay_reasons', 'SELECT, INSERT'),
    ('replay_runs', 'SELECT, INSERT, UPDATE (state, state_reason, mismatches_seen, updated_at, finished_at)'),
    ('replay_units', 'SELECT, INSERT, UPDATE (state, skip_reason, admitted_version, decided_at)'),
    ('replay_outcomes', 'SELECT'),
    ('backfill_days', 'SELECT, INSERT, UPDATE (state, requests, requested_at, listed_at, listed, created, '
     || 'requeued, left_out)'),
    -- Stages and nodes.
    ('run_state', 'SELECT, INSERT, UPDATE (lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at, '
     || 'artifact_uri, artifact_sha256)'),
    ('stage_audit', 'SELECT, INSERT'),
    ('stage_state', 'SELECT, INSERT, UPDATE (state, started_at, ended_at, error_class, restricted, checkpoint_uri, '
     || 'output_sha256, compensation)'),
    ('kfm_runs', 'SELECT'),
    ('etl_wal', 'SELECT, INSERT, UPDATE (status, applied_at, claimed)'),
    ('etl_steps', 'SELECT, INSERT, UPDATE (batch_id)'),
    ('etl_checkpoint', 'SELECT, INSERT, UPDATE (last_applied_hash, updated_at)'),
    ('node_output', 'SELECT, INSERT, UPDATE (valid_to)'),
    -- Publications, and how to withdraw them.
    ('catalog_collections', 'SELECT, INSERT, UPDATE (dataset, title), DELETE'),
    ('catalog_pages', 'SELECT, INSERT, UPDATE (items, west, south, east, north, west_360, east_360, '
     || 'over_antimeridian, over_greenwich, start_at, end_at, newest_promotion), DELETE'),
    ('catalog_summaries', 'SELECT, INSERT, UPDATE (items)'),
    ('catalog_changes', 'SELECT, INSERT'),
    ('announcements', 'SELECT, INSERT, UPDATE (change_id, kind, event_id, state, known, attempts, failing_since, '
     || 'last_error, body, taken, taken_at)'),
    ('catalog_items', 'SELECT, INSERT, UPDATE (content_sha256, object_uri, wal_id, replaces_wal_id, precedence, '
     || 'sequencer, revision, west, south, east, north, start_at, end_at, summaries, updated_at, promotion_id), '
     || 'DELETE'),
    ('catalog_kept_files', 'SELECT, INSERT'),
    ('catalog_promotions', 'SELECT, INSERT, UPDATE (withdrawn_at)'),
    ('lineage_batches', 'SELECT, INSERT, UPDATE (state, published_at, delivery, invalidated_by, '
     || 'invalidation_reason, invalidated_at)'),
    ('lineage_emissions', 'SELECT, INSERT'),
    ('lineage_failures', 'SELECT, INSERT, UPDATE (batch_id)'),
    -- Measurements and notifications.
    ('clock_readings', 'SELECT, INSERT'),
    ('alerts', 'SELECT, INSERT, UPDATE (state, level, level_since, last_seen_at, observed, last_event_at, run_id, '
     || 'place, last_notified_at, notifications, acknowledged_at, acknowledged_by, acknowledged_why, resolved_at)'),
    ('outbox', 'SELECT, INSERT, UPDATE (position, payload, turn, failures, next_attempt_at, last_error), DELETE'),
    -- The owner migrates.
    ('schema_version', 'SELECT')
)

-- Earlier rights are revoked first, so that a role keeps no right that a release no longer needs.
SELECT
    decision.relation,
    format(
        'REVOKE ALL ON %1$I.%2$I FROM %3$I; GRANT %4$s ON %1$I.%2$I TO %3$I',
        current_schema(), decision.relation, CAST(:role AS text), decision.rights
    ) AS statement
FROM decision;

-- name: retention
-- Retention reads every table and logs its deletions; it deletes files and Dagster's runs, which are in no table here.
SELECT
    c.relname AS relation,
    format(
        'REVOKE ALL ON %1$I.%2$I FROM %3$I; GRANT %4$s ON %1$I.%2$I TO %3$I',
        current_schema(), c.relname, CAST(:role AS text),
        CASE c.relname WHEN 'governance_log' THEN 'SELECT, INSERT' ELSE 'SELECT' END
    ) AS statement
FROM pg_class AS c
INNER JOIN pg_class AS ours ON c.relnamespace = ours.relnamespace AND c.relowner = ours.relowner
WHERE ours.oid = to_regclass('schema_version') AND c.relkind IN ('r', 'p', 'v');

-- name: frame
-- Rights to the schema and its sequences: to take a sequence's next number, but not to reset the sequence.
SELECT format(
    'REVOKE ALL ON SCHEMA %1$I FROM %2$I; GRANT USAGE ON SCHEMA %1$I TO %2$I', current_schema(), CAST(:role AS text)
) AS statement
UNION ALL
SELECT format(
    'REVOKE ALL ON SEQUENCE %1$s FROM %2$I; GRANT USAGE ON SEQUENCE %1$s TO %2$I',
    CAST(c.oid AS regclass), CAST(:role AS text)
)
FROM pg_class AS c
INNER JOIN pg_class AS ours ON c.relnamespace = ours.relnamespace AND c.relowner = ours.relowner
WHERE ours.oid = to_regclass('schema_version') AND c.relkind = 'S';

-- name: excess
-- A right to a table that the role has without our grant: as superuser or owner, by a membership, or as PUBLIC.
SELECT c.relname AS relation, right_to.name AS right_to FROM pg_class AS c
INNER JOIN pg_class AS ours ON c.relnamespace = ours.relnamespace AND c.relowner = ours.relowner
CROSS JOIN (VALUES ('UPDATE'), ('DELETE'), ('TRUNCATE'), ('TRIGGER')) AS right_to (name)
WHERE
    ours.oid = to_regclass('schema_version') AND c.relkind IN ('r', 'p', 'v')
    AND (
        pg_has_role(CAST(:role AS name), c.relowner, 'MEMBER')
        OR (
            has_table_privilege(CAST(:role AS name), c.oid, right_to.name)
            AND NOT EXISTS (
                SELECT 1 FROM aclexplode(c.relacl) AS granted
                INNER JOIN pg_roles AS r ON granted.grantee = r.oid
                WHERE r.rolname = :role AND granted.privilege_type = right_to.name
            )
        )
    )
ORDER BY c.relname, right_to.name
LIMIT 1;
