-- Statements of run-state.

-- name: of_run
SELECT dataset_id, run_id, lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at,
       artifact_uri, artifact_sha256
FROM run_state
WHERE run_id = :run_id AND (CAST(:dataset_id AS text) IS NULL OR dataset_id = :dataset_id)
ORDER BY recorded_at, dataset_id;

-- name: counts
SELECT outcome, count(*) AS records
FROM run_state
GROUP BY outcome;

-- name: holds_records
SELECT EXISTS (SELECT 1 FROM run_state WHERE dataset_id <> :claim) AS found;

-- name: claim
INSERT INTO run_state (dataset_id, run_id, lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at,
                       artifact_uri, artifact_sha256)
VALUES (:dataset_id, :run_id, :lakefs_branch, :inputs_hash, :validation_summary, :outcome, :recorded_at,
        :artifact_uri, :artifact_sha256)
ON CONFLICT (dataset_id, run_id) DO NOTHING;

-- name: put
-- sqlite: the condition comes before the insert, whose triggers would run before the conflict is detected.
-- Writes no row over a success if the new record is a skip or has the same inputs, nor over a rollback's record. A
-- rollback replaces both.
INSERT INTO run_state (dataset_id, run_id, lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at,
                       artifact_uri, artifact_sha256)
SELECT :dataset_id, :run_id, :lakefs_branch, :inputs_hash, :validation_summary, :outcome, :recorded_at,
       :artifact_uri, :artifact_sha256
WHERE NOT EXISTS (
    SELECT 1 FROM run_state AS kept
    WHERE
        kept.dataset_id = :dataset_id AND kept.run_id = :run_id
        AND (
            (kept.outcome = 'success' AND :outcome = 'skipped')
            OR (
                (
                    (kept.outcome = 'success' AND :inputs_hash = kept.inputs_hash)
                    OR kept.validation_summary ->> 'rolled_back_by' IS NOT NULL
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

-- name: put
-- postgresql: the condition is evaluated on the existing row after it is locked.
-- Writes no row over a success if the new record is a skip or has the same inputs, nor over a rollback's record. A
-- rollback replaces both.
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
