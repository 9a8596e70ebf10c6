-- Statements of run-state for SQLite, whose triggers see a row that is inserted before its conflict is found.

-- name: put
-- What is kept, a success or the record of a rollback, stays as it stands: no row is written.
INSERT INTO run_state (dataset_id, run_id, lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at,
                       artifact_uri, artifact_sha256)
SELECT :dataset_id, :run_id, :lakefs_branch, :inputs_hash, :validation_summary, :outcome, :recorded_at,
       :artifact_uri, :artifact_sha256
WHERE NOT EXISTS (
    SELECT 1 FROM run_state AS standing
    WHERE
        standing.dataset_id = :dataset_id AND standing.run_id = :run_id
        AND (
            (standing.outcome = 'success' AND :outcome = 'skipped')
            OR (
                (
                    (standing.outcome = 'success' AND :inputs_hash = standing.inputs_hash)
                    OR standing.validation_summary ->> 'rolled_back_by' IS NOT NULL
                )
                AND :validation_summary ->> 'rolled_back_by' IS NULL
            )
        )
)
ON CONFLICT (dataset_id, run_id) DO UPDATE SET
    lakefs_branch = excluded.lakefs_branch,
    inputs_hash = excluded.inputs_hash,
    validation_summary = excluded.validation_summary,
    outcome = excluded.outcome,
    recorded_at = excluded.recorded_at,
    artifact_uri = excluded.artifact_uri,
    artifact_sha256 = excluded.artifact_sha256;
