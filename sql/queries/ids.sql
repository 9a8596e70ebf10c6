-- Ids that begin with a person's input.

-- name: wal_ids
-- A range of the key: `~` sorts after every character of an id.
SELECT wal_id FROM nodd_wal_records WHERE wal_id >= :prefix AND wal_id < :prefix || '~' ORDER BY wal_id LIMIT :limit;

-- name: replay_ids
-- A range of the key: `~` sorts after every character of an id.
SELECT replay_run_id FROM replay_runs WHERE replay_run_id >= :prefix AND replay_run_id < :prefix || '~' ORDER BY replay_run_id LIMIT :limit;

-- name: rejected_message_ids
-- A range of the key: `~` sorts after every character of an id.
SELECT DISTINCT message_id FROM rejected_messages WHERE message_id >= :prefix AND message_id < :prefix || '~' ORDER BY message_id LIMIT :limit;
