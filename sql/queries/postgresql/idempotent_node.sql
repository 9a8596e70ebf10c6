-- name: lock_content
SELECT pg_advisory_xact_lock(hashtextextended('etl_wal/' || :content_hash, 0));

-- name: lock_node
SELECT pg_advisory_xact_lock(hashtextextended('etl_checkpoint/' || :node, 0));
