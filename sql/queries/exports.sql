-- Statements of the exports; they only read. What explodes JSON is in the dialects' folders.

-- name: collections
SELECT
    collection.collection_id, collection.dataset, collection.title,
    (SELECT count(*) FROM catalog_items AS item WHERE item.collection_id = collection.collection_id) AS items,
    (SELECT min(item.updated_at) FROM catalog_items AS item WHERE item.collection_id = collection.collection_id)
    AS first_at,
    (SELECT max(item.updated_at) FROM catalog_items AS item WHERE item.collection_id = collection.collection_id)
    AS changed_at
FROM catalog_collections AS collection
ORDER BY collection.collection_id;

-- name: latest_run
-- The run that last ended a node of a dataset; runs from before there were intents have records only.
SELECT found.run_id
FROM (
    SELECT run_id, recorded_at AS at FROM run_state
    WHERE substr(dataset_id, 1, length(:dataset) + 1) = :dataset || '.'
    UNION ALL
    SELECT coalesce(payload -> 'context' ->> 'run_id', CAST(run_id AS text)), started_at FROM etl_wal
    WHERE substr(node, 1, length(:dataset) + 1) = :dataset || '.' AND status <> 'PENDING'
) AS found
ORDER BY found.at DESC, found.run_id DESC
LIMIT 1;

-- name: activities
-- A node in a run, once, however many contents it applied.
SELECT
    CAST(run_id AS text) AS run_id, node, step, min(started_at) AS started_at, max(applied_at) AS ended_at
FROM etl_wal
WHERE status = 'APPLIED'
GROUP BY run_id, node, step
ORDER BY min(wal_id);

-- name: generations
SELECT content_hash, CAST(run_id AS text) AS run_id, node, step
FROM etl_wal
WHERE status = 'APPLIED'
ORDER BY wal_id;

-- name: artifacts
-- What a node made besides its batch, or else the batch.
SELECT
    output.content_hash, intent.node, intent.step,
    COALESCE(output.record -> 'artifact' ->> 'uri', output.record ->> 'artifact_uri') AS uri,
    COALESCE(output.record -> 'artifact' ->> 'sha256', output.record ->> 'artifact_sha256') AS sha256,
    output.record ->> 'outcome' AS outcome, output.valid_from, output.valid_to
FROM etl_wal AS intent
INNER JOIN node_output AS output ON intent.content_hash = output.content_hash
WHERE intent.status = 'APPLIED'
ORDER BY intent.wal_id;
