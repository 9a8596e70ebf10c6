-- name: insert_batch
INSERT INTO lineage_batches
    (batch_id, path, dataset, run_id, href, sha256, unit_count, state, delivery, created_at, published_at)
VALUES (:batch_id, :path, :dataset, :run_id, :href, :sha256, :unit_count, 'staged', :delivery, :created_at, NULL);

-- name: staged
SELECT batch_id, path, dataset, href FROM lineage_batches WHERE state = 'staged' ORDER BY created_at, batch_id;

-- name: mark_published
UPDATE lineage_batches SET state = 'published', published_at = :published_at
WHERE batch_id = :batch_id AND state = 'staged';

-- name: forget_emissions
DELETE FROM lineage_emissions
WHERE batch_id IN (SELECT batch_id FROM lineage_batches WHERE batch_id = :batch_id AND state = 'staged');

-- name: forget_batch
DELETE FROM lineage_batches WHERE batch_id = :batch_id AND state = 'staged';

-- name: undelivered
SELECT batch_id, href FROM lineage_batches
WHERE delivery = 'pending' AND state = 'published' ORDER BY created_at, batch_id LIMIT :most;

-- name: mark_delivered
UPDATE lineage_batches SET delivery = 'delivered' WHERE batch_id = :batch_id AND delivery = 'pending';

-- name: of_unit
SELECT emission.wal_id, emission.path, emission.lineage_id, batch.href, batch.state, batch.run_id,
    record.object_uri, record.status
FROM lineage_emissions AS emission
JOIN lineage_batches AS batch ON batch.batch_id = emission.batch_id
LEFT JOIN nodd_wal_records AS record ON record.wal_id = emission.wal_id
WHERE emission.wal_id = :wal_id ORDER BY emission.path;

-- name: of_lineage_id
SELECT emission.wal_id, emission.path, emission.lineage_id, batch.href, batch.state, batch.run_id,
    record.object_uri, record.status
FROM lineage_emissions AS emission
JOIN lineage_batches AS batch ON batch.batch_id = emission.batch_id
LEFT JOIN nodd_wal_records AS record ON record.wal_id = emission.wal_id
WHERE emission.lineage_id = :lineage_id;
