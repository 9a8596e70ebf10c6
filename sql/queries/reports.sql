-- name: ledger_span
SELECT min(created_at) AS began_at, max(updated_at) AS ended_at
FROM nodd_wal_records
WHERE created_at >= :since;
