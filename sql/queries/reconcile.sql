-- Statements that compare bucket, ledger, catalog and lineage for a day of a dataset.

-- name: units
SELECT wal_id, object_uri, object_version, status, stac_item_id, stac_item_href
FROM nodd_wal_records
WHERE
    status IN ('pending', 'in_progress', 'succeeded', 'failed', 'quarantined')
    AND dataset = :dataset AND partition_key = :day;

-- name: items_of_day
-- Items of a day, with the status of the unit that wrote each.
SELECT item.item_id, item.wal_id, record.dataset, record.status, record.next_attempt_at
FROM catalog_items AS item
LEFT JOIN nodd_wal_records AS record ON item.wal_id = record.wal_id
WHERE item.collection_id = :collection_id AND item.partition_key = :day;

-- name: lineage
-- The files with the valid lineage of a day's successes.
SELECT emission.wal_id, emission.path, batch.href, batch.state
FROM nodd_wal_records AS record
INNER JOIN lineage_emissions AS emission ON record.wal_id = emission.wal_id
INNER JOIN lineage_batches AS batch ON emission.batch_id = batch.batch_id
WHERE
    record.status = 'succeeded' AND record.dataset = :dataset AND record.partition_key = :day
    AND batch.invalidated_by IS NULL;
