-- name: ledger_span
SELECT min(created_at) AS began, max(updated_at) AS ended FROM nodd_wal_records;
