-- Batch statements of backfills for PostgreSQL: a batch is one JSON parameter.

-- name: add_days
INSERT INTO backfill_days (backfill_id, dataset, day, state, requests, listed, created, readmitted)
SELECT :backfill_id, dataset, day, 'waiting', 0, 0, 0, 0
FROM
    jsonb_array_elements_text(CAST(:datasets AS jsonb)) AS dataset,
    jsonb_array_elements_text(CAST(:days AS jsonb)) AS day;

-- name: next_days
-- The first day of each running backfill that waits, of the given datasets; the backfill that was served longest ago
-- comes first.
WITH next AS (
    SELECT
        backfill.backfill_id, backfill.started_at, min(day.day) AS day,
        (SELECT max(d.requested_at) FROM backfill_days AS d WHERE d.backfill_id = backfill.backfill_id) AS served_at
    FROM backfills AS backfill
    INNER JOIN backfill_days AS day ON backfill.backfill_id = day.backfill_id
    WHERE
        backfill.state = 'running' AND day.state = 'waiting'
        AND day.dataset IN (SELECT jsonb_array_elements_text(CAST(:datasets AS jsonb)))
    GROUP BY backfill.backfill_id, backfill.started_at
)

SELECT next.backfill_id, next.day, day.requests, day.dataset
FROM next
INNER JOIN backfill_days AS day ON next.backfill_id = day.backfill_id AND next.day = day.day
WHERE day.state = 'waiting' AND day.dataset IN (SELECT jsonb_array_elements_text(CAST(:datasets AS jsonb)))
ORDER BY next.served_at NULLS FIRST, next.started_at, next.backfill_id, day.dataset;

-- name: requested
-- Days whose run has been asked for and has not listed them yet; few, for a further day waits for these.
SELECT day.backfill_id, day.day, day.requests, day.requested_at, day.dataset
FROM backfills AS backfill
INNER JOIN backfill_days AS day ON backfill.backfill_id = day.backfill_id
WHERE
    backfill.state = 'running' AND day.state = 'requested'
    AND day.dataset IN (SELECT jsonb_array_elements_text(CAST(:datasets AS jsonb)))
ORDER BY day.requested_at, day.backfill_id, day.day, day.dataset;

-- name: request
UPDATE backfill_days SET state = 'requested', requests = requests + 1, requested_at = :at
WHERE
    backfill_id = :backfill_id AND day = :day AND state IN ('waiting', 'requested')
    AND dataset IN (SELECT jsonb_array_elements_text(CAST(:datasets AS jsonb)))
    AND EXISTS (
        SELECT 1 FROM backfills AS b WHERE b.backfill_id = backfill_days.backfill_id AND b.state = 'running'
    )
RETURNING dataset, requests;
