-- name: history
SELECT emission.wal_id, emission.path, emission.edition, emission.content_sha256,
    invalidation.batch_id IS NOT NULL AS invalidated
FROM lineage_emissions AS emission
JOIN lineage_batches AS batch ON batch.batch_id = emission.batch_id
LEFT JOIN lineage_invalidations AS invalidation ON invalidation.batch_id = emission.batch_id
WHERE emission.wal_id IN (SELECT value FROM json_each(:wal_ids))
ORDER BY batch.created_at, emission.edition;

-- name: insert_emissions
-- Returns the units whose rows are new: another worker may have told the others.
INSERT INTO lineage_emissions (wal_id, path, edition, lineage_id, content_sha256, batch_id)
SELECT
    json_extract(unit.value, '$[0]'), :path, json_extract(unit.value, '$[1]'), json_extract(unit.value, '$[2]'),
    json_extract(unit.value, '$[3]'), :batch_id
FROM json_each(:units) AS unit
WHERE true
ON CONFLICT (wal_id, path, edition) DO NOTHING
RETURNING wal_id;

-- name: claim_delivery
UPDATE lineage_outbox SET attempts = lineage_outbox.attempts + 1, next_attempt_at = :lease_until
FROM (
    SELECT waiting.batch_id, batch.href, batch.sha256
    FROM lineage_outbox AS waiting
    JOIN lineage_batches AS batch ON batch.batch_id = waiting.batch_id
    WHERE waiting.destination = 'backend' AND waiting.next_attempt_at <= :now AND batch.state = 'published'
    ORDER BY waiting.next_attempt_at, waiting.batch_id LIMIT 1
) AS due
WHERE lineage_outbox.batch_id = due.batch_id AND lineage_outbox.destination = 'backend'
-- SQLite returns no column of the FROM clause.
RETURNING
    batch_id, attempts, events_done, not_taken,
    (SELECT batch.href FROM lineage_batches AS batch WHERE batch.batch_id = lineage_outbox.batch_id) AS href,
    (SELECT batch.sha256 FROM lineage_batches AS batch WHERE batch.batch_id = lineage_outbox.batch_id) AS sha256;

-- name: lock_steps
-- A transaction that writes is the only one that does.
SELECT 1;
