-- Statements over Dagster's own run storage (dagster/_core/storage/runs/schema.py), in Dagster's database; they only read.

-- name: beginning
SELECT run.run_id, tag.value AS root_run_id, run.start_time, run.end_time
FROM run_tags AS tag
INNER JOIN runs AS run ON tag.run_id = run.run_id
WHERE tag.key = 'dagster/root_run_id' AND substr(tag.run_id, 1, length(:beginning)) = :beginning
ORDER BY run.run_id
LIMIT :limit;

-- name: of_root
SELECT run.run_id, tag.value AS root_run_id, run.start_time, run.end_time
FROM run_tags AS tag
INNER JOIN runs AS run ON tag.run_id = run.run_id
WHERE tag.key = 'dagster/root_run_id' AND tag.value = :root_run_id
ORDER BY run.id;
