-- name: emitted
SELECT emission.wal_id, batch.state
FROM lineage_emissions AS emission
JOIN lineage_batches AS batch ON batch.batch_id = emission.batch_id
WHERE emission.path = :path
AND emission.wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)));

-- name: insert_emissions
INSERT INTO lineage_emissions (wal_id, path, lineage_id, batch_id)
SELECT unit.value ->> 0, :path, unit.value ->> 1, :batch_id
FROM jsonb_array_elements(CAST(:units AS jsonb)) WITH ORDINALITY AS unit (value, position)
ORDER BY unit.position;
