-- name: lock_content
-- A transaction that writes is the only one that does.
SELECT :content_hash;

-- name: lock_node
-- As lock_content.
SELECT :node;
