-- name: emitted
SELECT emission.wal_id, batch.state
FROM lineage_emissions AS emission
JOIN lineage_batches AS batch ON batch.batch_id = emission.batch_id
WHERE emission.path = :path AND emission.wal_id IN (SELECT value FROM json_each(:wal_ids));

-- name: insert_emissions
INSERT INTO lineage_emissions (wal_id, path, lineage_id, batch_id)
SELECT json_extract(unit.value, '$[0]'), :path, json_extract(unit.value, '$[1]'), :batch_id
FROM json_each(:units) AS unit;
