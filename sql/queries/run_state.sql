-- name: get
SELECT dataset_id, run_id, lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at,
       artifact_uri, artifact_sha256
FROM run_state
WHERE dataset_id = :dataset_id AND run_id = :run_id;

-- name: of_run
SELECT dataset_id, run_id, lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at,
       artifact_uri, artifact_sha256
FROM run_state
WHERE run_id = :run_id
ORDER BY recorded_at, dataset_id;

-- name: since
SELECT dataset_id, run_id, lakefs_branch, inputs_hash, validation_summary, outcome, recorded_at,
       artifact_uri, artifact_sha256
FROM run_state
WHERE recorded_at >= :moment
ORDER BY run_id, recorded_at, dataset_id;

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
