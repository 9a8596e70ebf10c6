-- Statements of the announcements.

-- name: known
SELECT item_id, change_id, kind, event_id, state, known FROM announcements
WHERE subscription = :subscription AND collection_id = :collection_id AND item_id IN (@each(:item_ids));

-- name: go_on
-- Advances Items that have a row to later changes; an older change has no effect and is not returned.
UPDATE announcements SET
    change_id = e.change_id, kind = e.kind, event_id = e.event_id, state = e.state,
    known = CASE WHEN e.state = 'silent' THEN e.kind <> 'withdrawn' ELSE announcements.known END,
    attempts = 0, failing_since = NULL, last_error = NULL, body = NULL
FROM @batch(:events, e, item_id text, change_id bigint, kind text, event_id text, state text)
WHERE
    announcements.subscription = :subscription AND announcements.collection_id = :collection_id
    AND announcements.item_id = e.item_id AND announcements.change_id < e.change_id
RETURNING @returned(announcements.event_id);

-- name: begin
INSERT INTO announcements (subscription, collection_id, item_id, change_id, kind, event_id, state, known)
SELECT :subscription, :collection_id, e.item_id, e.change_id, e.kind, e.event_id, e.state, e.state = 'silent'
FROM @batch(:events, e, item_id text, change_id bigint, kind text, event_id text, state text)
WHERE
    NOT EXISTS (
        SELECT 1 FROM announcements AS earlier
        WHERE
            earlier.subscription = :subscription AND earlier.collection_id = :collection_id AND earlier.item_id = e.item_id
    )
ORDER BY e.item_id
ON CONFLICT (subscription, collection_id, item_id) DO NOTHING
RETURNING event_id;

-- name: taken
UPDATE announcements SET
    state = 'sent', known = announcements.kind <> 'withdrawn', attempts = 0, failing_since = NULL, last_error = NULL,
    body = NULL, taken = announcements.taken + 1, taken_at = :now
FROM @batch(:events, e, item_id text, event_id text)
WHERE
    announcements.subscription = :subscription AND announcements.collection_id = :collection_id
    AND announcements.item_id = e.item_id AND announcements.event_id = e.event_id
    AND announcements.state IN ('open', 'refused');

-- name: failed
-- A failure counts only if the receiver accepts other events meanwhile; a receiver that accepts no event is down.
UPDATE announcements SET
    failing_since = coalesce(announcements.failing_since, @as_time(:begun_at)), last_error = e.error,
    attempts = announcements.attempts + CASE
        WHEN EXISTS (
            SELECT 1 FROM announcements AS other
            WHERE
                other.subscription = :subscription AND other.state = 'sent'
                AND other.taken_at >= coalesce(announcements.failing_since, @as_time(:begun_at))
        ) THEN 1
        ELSE 0
    END
FROM @batch(:events, e, item_id text, event_id text, error text)
WHERE
    announcements.subscription = :subscription AND announcements.collection_id = :collection_id
    AND announcements.item_id = e.item_id AND announcements.event_id = e.event_id AND announcements.state = 'open'
RETURNING @returned(announcements.event_id, announcements.attempts);

-- name: refused
UPDATE announcements SET
    state = 'refused', body = e.body, last_error = e.error,
    failing_since = coalesce(announcements.failing_since, @as_time(:now))
FROM @batch(:events, e, item_id text, event_id text, error text, body text)
WHERE
    announcements.subscription = :subscription AND announcements.collection_id = :collection_id
    AND announcements.item_id = e.item_id AND announcements.event_id = e.event_id
    AND announcements.state IN ('open', 'refused');

-- name: forget
-- Sent and refused events are sent again, except for sent withdrawals, which the receiver already has.
UPDATE announcements SET state = 'open', attempts = 0, failing_since = NULL, last_error = NULL, body = NULL
WHERE
    subscription = :subscription AND collection_id = :collection_id
    AND (state = 'refused' OR (state = 'sent' AND kind <> 'withdrawn'));

-- name: to_resend
SELECT collection_id, item_id, kind, event_id, failing_since, body FROM announcements
WHERE subscription = :subscription AND state = 'refused'
ORDER BY collection_id, item_id;

-- name: status
-- `waiting` counts changes that were not sent, or not yet compared with the subscription's conditions.
WITH put_off AS (
    SELECT next_attempt_at, last_error FROM outbox
    WHERE topic = 'catalog' AND consumer = :follower AND failures > 0
    ORDER BY failures DESC, subject
    LIMIT 1
)
SELECT
    coalesce(sum(taken), 0) AS sent,
    (
        SELECT count(*) FROM catalog_changes AS change
        LEFT JOIN outbox AS place
            ON place.topic = 'catalog' AND place.subject = change.collection_id AND place.consumer = :follower
        WHERE change.change_id > coalesce(place.position, 0)
    ) AS waiting,
    count(*) FILTER (WHERE state = 'open' AND last_error IS NOT NULL) AS failing,
    count(*) FILTER (WHERE state = 'refused') AS refused,
    max(taken_at) AS taken_at,
    (SELECT next_attempt_at FROM put_off) AS next_attempt_at,
    (SELECT last_error FROM put_off) AS last_error
FROM announcements
WHERE subscription = :subscription;

-- name: in_trouble
SELECT collection_id, item_id, kind, event_id, state, attempts, failing_since, last_error FROM announcements
WHERE subscription = :subscription AND state IN ('open', 'refused') AND last_error IS NOT NULL
ORDER BY state DESC, collection_id, item_id;
