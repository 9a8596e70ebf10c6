-- Statements that explain a run; they only read.

-- name: intents
-- A run's intents, each with the run that applied its content, the output, and the resources used.
SELECT
    intent.wal_id, intent.node, intent.step, intent.payload, intent.claimed, intent.content_hash, intent.status,
    intent.started_at, intent.applied_at, coalesce(applied.payload -> 'context' ->> 'run_id', CAST(applied.run_id AS text)) AS applied_by,
    output.record, output.valid_to, step.seconds, step.cpu_seconds, step.rows_in, step.rows_out, step.bytes_in,
    step.bytes_out, step.energy_kwh, step.carbon_gco2e, step.measured_by, step.cost_usd
FROM etl_wal AS intent
LEFT JOIN etl_wal AS applied ON intent.content_hash = applied.content_hash AND applied.status = 'APPLIED'
LEFT JOIN node_output AS output ON intent.content_hash = output.content_hash
LEFT JOIN etl_steps AS step ON intent.wal_id = step.wal_id AND intent.status = step.status
WHERE intent.run_id = :run_id
ORDER BY intent.wal_id;

-- name: runs_beginning
-- No index is needed, because only people request this, and the tables have few rows per run.
SELECT run_id FROM run_state
-- Without the record that names the store of run-state (run_state/choice.py).
WHERE substr(run_id, 1, length(:prefix)) = :prefix AND dataset_id <> 'kfm.run_state_store'
UNION
SELECT CAST(run_id AS text) FROM etl_wal
WHERE substr(CAST(run_id AS text), 1, length(:prefix)) = :prefix
ORDER BY run_id
LIMIT :limit;

-- name: runs_of_unit
-- The run that last changed a unit, by its wal_id, or the run that wrote the current Item, by the Item's id.
SELECT ingest_run_id AS run_id FROM nodd_wal_records WHERE wal_id = :name AND ingest_run_id IS NOT NULL
UNION ALL
SELECT promotion.run_id
FROM catalog_collections AS collection
-- In this order, because the index of Items begins with the Collection.
CROSS JOIN catalog_items AS item
INNER JOIN catalog_promotions AS promotion ON item.promotion_id = promotion.promotion_id
WHERE item.collection_id = collection.collection_id AND item.item_id = :name AND promotion.run_id IS NOT NULL;

-- name: latest_run
-- The newest ingest; other runs (paths, virtual stores) are explained only by id. If a run's id is not a UUID, its
-- intent has another id. The run's record has the true id, and is returned because it is later than the intent.
SELECT found.run_id
FROM (
    SELECT run_id, recorded_at AS at FROM run_state WHERE @position(dataset_id || '@', :stage) > 0
    UNION ALL
    SELECT CAST(run_id AS text), started_at FROM etl_wal
    WHERE wal_id = (SELECT wal_id FROM etl_wal WHERE @position(node, :stage) > 0 ORDER BY wal_id DESC LIMIT 1)
) AS found
ORDER BY found.at DESC, found.run_id DESC
LIMIT 1;
