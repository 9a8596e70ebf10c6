-- name: insert_batch
INSERT INTO lineage_batches
    (batch_id, path, dataset, run_id, href, sha256, unit_count, state, delivery, created_at, published_at)
VALUES (:batch_id, :path, :dataset, :run_id, :href, :sha256, :unit_count, 'staged', :delivery, :created_at, NULL);

-- name: unpublished_steps
-- Ordered like the index of unpublished steps. In order of runs, the query would read every intent, or sort all steps.
SELECT
    step.wal_id, step.status, step.ended_at, step.seconds, step.cpu_seconds, step.rows_in, step.rows_out,
    step.bytes_in, step.bytes_out, step.energy_kwh, step.carbon_gco2e, step.measured_by, step.cost_usd, step.error,
    intent.run_id, intent.node, intent.step, intent.payload, intent.claimed, intent.content_hash, intent.started_at,
    output.record
FROM etl_steps AS step
JOIN etl_wal AS intent ON intent.wal_id = step.wal_id
LEFT JOIN node_output AS output ON output.content_hash = intent.content_hash
WHERE step.batch_id IS NULL ORDER BY step.wal_id, step.ended_at, step.status LIMIT :most;

-- name: mark_step_published
UPDATE etl_steps SET batch_id = :batch_id WHERE wal_id = :wal_id AND status = :status;

-- name: unpublished_failures
SELECT
    failure.wal_id, failure.version, record.dataset, record.object_uri, move.attempts AS attempt, move.run_id, move.at,
    move.fields
FROM lineage_failures AS failure
INNER JOIN nodd_wal_records AS record ON failure.wal_id = record.wal_id
INNER JOIN nodd_wal_transitions AS move ON failure.wal_id = move.wal_id AND failure.version = move.version
WHERE failure.batch_id IS NULL ORDER BY failure.wal_id, failure.version LIMIT :most;

-- name: mark_failure_published
UPDATE lineage_failures SET batch_id = :batch_id WHERE wal_id = :wal_id AND version = :version;

-- name: batch
SELECT href, sha256 FROM lineage_batches WHERE batch_id = :batch_id;

-- name: mark_published
UPDATE lineage_batches SET state = 'published', published_at = :published_at
WHERE batch_id = :batch_id AND state = 'staged';

-- name: mark_delivered
UPDATE lineage_batches SET delivery = 'delivered' WHERE batch_id = :batch_id AND delivery = 'pending';

-- name: backlog
SELECT waiting.consumer, count(*) AS batches, sum(batch.unit_count) AS units, min(batch.created_at) AS oldest_at,
    max(waiting.last_error) AS error
FROM outbox AS waiting
JOIN lineage_batches AS batch ON batch.batch_id = waiting.subject
WHERE waiting.topic = 'lineage'
GROUP BY waiting.consumer;

-- name: failing
SELECT
    batch.batch_id, waiting.consumer AS destination, batch.href, waiting.failures AS attempts, waiting.next_attempt_at,
    waiting.last_error,
    CASE waiting.consumer WHEN 'backend' THEN @json_size(waiting.payload) ELSE 0 END AS not_taken
FROM outbox AS waiting
JOIN lineage_batches AS batch ON batch.batch_id = waiting.subject
WHERE waiting.topic = 'lineage' AND waiting.failures > 0
ORDER BY waiting.failures DESC, batch.created_at, batch.batch_id, waiting.consumer LIMIT :most;

-- name: links
-- The lineage view: a unit's lineage that was not withdrawn, or the publication of a lineage id, even if withdrawn.
SELECT emission.wal_id, emission.path, emission.revision, emission.lineage_id, batch.href, batch.state, batch.run_id,
    record.object_uri, record.status AS record_status, batch.invalidated_at
FROM lineage_emissions AS emission
JOIN lineage_batches AS batch ON batch.batch_id = emission.batch_id
LEFT JOIN nodd_wal_records AS record ON record.wal_id = emission.wal_id
WHERE (emission.wal_id = :wal_id OR emission.lineage_id = :lineage_id)
  AND (batch.invalidated_by IS NULL OR emission.lineage_id = :lineage_id)
ORDER BY batch.created_at, emission.revision, emission.path;

-- name: standing_batches
-- A run's batches for a dataset that are not withdrawn. Batches of invalidations have no units, so they are omitted.
SELECT batch.batch_id, batch.path, batch.href
FROM lineage_batches AS batch
WHERE batch.run_id = :run_id AND batch.dataset = :dataset
  AND EXISTS (SELECT 1 FROM lineage_emissions AS emission WHERE emission.batch_id = batch.batch_id)
  AND batch.invalidated_by IS NULL
ORDER BY batch.batch_id
@lock(FOR UPDATE OF batch);

-- name: invalidate
UPDATE lineage_batches SET
    invalidated_by = :invalidated_by, invalidation_reason = :reason, invalidated_at = :invalidated_at
WHERE batch_id = :batch_id;

-- name: emissions_of_batch
SELECT wal_id, revision, lineage_id, content_sha256 FROM lineage_emissions
WHERE batch_id = :batch_id ORDER BY wal_id;

-- name: history
SELECT emission.wal_id, emission.path, emission.revision, emission.content_sha256,
    batch.invalidated_by IS NOT NULL AS invalidated
FROM lineage_emissions AS emission
JOIN lineage_batches AS batch ON batch.batch_id = emission.batch_id
WHERE emission.wal_id IN (@each(:wal_ids))
ORDER BY batch.created_at, emission.revision;

-- name: insert_emissions
-- Returns the units whose rows are new; another worker may have recorded the other units.
INSERT INTO lineage_emissions (wal_id, path, revision, lineage_id, content_sha256, batch_id)
SELECT unit.value ->> 0, :path, unit.value ->> 1, unit.value ->> 2, unit.value ->> 3, :batch_id
FROM @rows(:units, unit)
WHERE TRUE
@in_order(unit.value ->> 0, unit.value ->> 1)
ON CONFLICT (wal_id, path, revision) DO NOTHING
RETURNING wal_id;
