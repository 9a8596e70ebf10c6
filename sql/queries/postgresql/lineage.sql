-- name: history
SELECT emission.wal_id, emission.path, emission.edition, emission.content_sha256,
    invalidation.batch_id IS NOT NULL AS invalidated
FROM lineage_emissions AS emission
JOIN lineage_batches AS batch ON batch.batch_id = emission.batch_id
LEFT JOIN lineage_invalidations AS invalidation ON invalidation.batch_id = emission.batch_id
WHERE emission.wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
ORDER BY batch.created_at, emission.edition;

-- name: insert_emissions
-- Returns the units whose rows are new: another worker may have told the others.
INSERT INTO lineage_emissions (wal_id, path, edition, lineage_id, content_sha256, batch_id)
SELECT unit.value ->> 0, :path, unit.value ->> 1, unit.value ->> 2, unit.value ->> 3, :batch_id
FROM jsonb_array_elements(CAST(:units AS jsonb)) WITH ORDINALITY AS unit (value, position)
ORDER BY unit.position
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
    FOR UPDATE OF waiting SKIP LOCKED
) AS due
WHERE lineage_outbox.batch_id = due.batch_id AND lineage_outbox.destination = 'backend'
RETURNING lineage_outbox.batch_id, due.href, due.sha256, lineage_outbox.attempts, lineage_outbox.events_done,
    CAST(lineage_outbox.not_taken AS text) AS not_taken;

-- name: lock_steps
SELECT pg_advisory_xact_lock(hashtextextended('etl_steps', 0));
