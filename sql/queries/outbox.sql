-- Statements of the outbox.

-- name: put
INSERT INTO outbox (topic, consumer, subject, payload, content, created_at, next_attempt_at)
VALUES (:topic, :consumer, :subject, :payload, :content, @as_time(:now), @as_time(:now))
ON CONFLICT (topic, subject, consumer) DO NOTHING;

-- name: due
SELECT
    entry.consumer, entry.subject, entry.position, entry.payload, entry.content, entry.created_at, entry.turn,
    entry.failures, entry.last_error
FROM outbox AS entry
WHERE
    entry.topic = :topic AND entry.consumer IN (@each(:consumers)) AND entry.next_attempt_at <= @as_time(:now)
    AND NOT EXISTS (
        SELECT 1 FROM outbox AS earlier
        WHERE earlier.topic = entry.topic AND earlier.subject = entry.subject AND earlier.consumer = :after
    )
ORDER BY entry.next_attempt_at, entry.subject, entry.consumer
LIMIT 1;

-- name: claim
UPDATE outbox SET turn = turn + 1, next_attempt_at = @as_time(:lease_until)
WHERE topic = :topic AND subject = :subject AND consumer = :consumer AND next_attempt_at <= @as_time(:now)
RETURNING consumer, subject, position, payload, content, created_at, turn, failures, last_error;

-- name: write
-- Writes nothing if there is a newer claim; created_at distinguishes an entry from an earlier entry of the subject.
UPDATE outbox SET
    position = :position, payload = :payload, failures = :failures, last_error = :last_error,
    next_attempt_at = @as_time(:next_attempt_at)
WHERE
    topic = :topic AND subject = :subject AND consumer = :consumer AND turn = :turn AND created_at = @as_time(:created_at)
RETURNING turn;

-- name: done
DELETE FROM outbox
WHERE
    topic = :topic AND subject = :subject AND consumer = :consumer AND turn = :turn AND created_at = @as_time(:created_at);
