-- Statements of run-state for PostgreSQL.

-- name: put
-- What is kept, a success or the record of a rollback, stays as it stands: no row is written.
INSERT INTO run_state (dataset_id, run_id, lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at,
                       artifact_uri, artifact_sha256)
VALUES (:dataset_id, :run_id, :lakefs_branch, :inputs_hash, :validation_summary, :outcome, :recorded_at,
        :artifact_uri, :artifact_sha256)
ON CONFLICT (dataset_id, run_id) DO UPDATE SET
    lakefs_branch = excluded.lakefs_branch,
    inputs_hash = excluded.inputs_hash,
    validation_summary = excluded.validation_summary,
    outcome = excluded.outcome,
    recorded_at = excluded.recorded_at,
    artifact_uri = excluded.artifact_uri,
    artifact_sha256 = excluded.artifact_sha256
WHERE
    (run_state.outcome <> 'success' OR excluded.outcome <> 'skipped')
    AND (
        (
            (run_state.outcome <> 'success' OR excluded.inputs_hash <> run_state.inputs_hash)
            AND run_state.validation_summary ->> 'rolled_back_by' IS NULL
        )
        OR excluded.validation_summary ->> 'rolled_back_by' IS NOT NULL
    );
