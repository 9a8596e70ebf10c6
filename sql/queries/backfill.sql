-- Statements of backfills.

-- name: due_listings
-- Scheduled listings that have not begun, except for days of a running backfill, because that backfill must end first.
SELECT listing.backfill_id
FROM @batch(:listings, listing, backfill_id text, dataset text, day text)
WHERE
    NOT EXISTS (SELECT 1 FROM replay_runs AS begun WHERE begun.replay_run_id = listing.backfill_id)
    AND NOT EXISTS (
        SELECT 1
        FROM replay_runs AS b
        INNER JOIN backfill_days AS d ON b.replay_run_id = d.backfill_id
        WHERE b.state = 'running' AND d.dataset = listing.dataset AND d.day = listing.day
    );

-- name: days_by_state
SELECT dataset, state, count(*) AS days FROM backfill_days WHERE backfill_id = :backfill_id GROUP BY dataset, state;

-- name: running
SELECT count(*) FROM replay_runs WHERE state = 'running' AND mode = 'backfill';

-- name: open_listing
-- Resets the count of objects before a listing. No row if the day is listed already, or its backfill was cancelled.
UPDATE backfill_days SET listed = 0
WHERE
    backfill_id = :backfill_id AND dataset = :dataset AND day = :day AND state = 'requested'
    AND EXISTS (
        SELECT 1 FROM replay_runs AS b WHERE b.replay_run_id = backfill_days.backfill_id AND b.state = 'running'
    )
RETURNING day;

-- name: count_listed
UPDATE backfill_days SET
    listed = listed + :listed, created = created + :created, requeued = requeued + :requeued
WHERE
    backfill_id = :backfill_id AND dataset = :dataset AND day = :day AND state = 'requested'
    AND EXISTS (
        SELECT 1 FROM replay_runs AS b WHERE b.replay_run_id = backfill_days.backfill_id AND b.state = 'running'
    )
RETURNING day;

-- name: close_listing
-- Changes nothing if the backfill was cancelled during the listing.
UPDATE backfill_days SET state = 'listed', listed_at = :at, left_out = @as_json(:left_out)
WHERE
    backfill_id = :backfill_id AND dataset = :dataset AND day = :day AND state = 'requested'
    AND EXISTS (
        SELECT 1 FROM replay_runs AS b WHERE b.replay_run_id = backfill_days.backfill_id AND b.state = 'running'
    );

-- name: unlisted
SELECT day.backfill_id, day.dataset, count(*) AS days
FROM replay_runs AS backfill
INNER JOIN backfill_days AS day ON backfill.replay_run_id = day.backfill_id
WHERE backfill.state = 'running' AND day.state <> 'listed'
GROUP BY day.backfill_id, day.dataset
ORDER BY day.backfill_id, day.dataset;

-- name: all_listed
SELECT backfill.replay_run_id
FROM replay_runs AS backfill
WHERE
    backfill.state = 'running' AND backfill.mode = 'backfill'
    AND NOT EXISTS (
        SELECT 1 FROM backfill_days AS day WHERE day.backfill_id = backfill.replay_run_id AND day.state <> 'listed'
    )
ORDER BY backfill.replay_run_id;

-- name: finish
-- Ends the backfill unless its days have a bulk unit that is pending, in progress, or to be retried automatically.
UPDATE replay_runs SET state = 'finished', finished_at = :at, updated_at = :at
WHERE
    replay_run_id = :backfill_id AND state = 'running'
    AND NOT EXISTS (
        SELECT 1
        FROM backfill_days AS day
        INNER JOIN nodd_wal_records AS record
            ON day.dataset = record.dataset AND day.day = record.partition_key
        WHERE
            day.backfill_id = replay_runs.replay_run_id AND record.lane = 'bulk'
            AND (
                record.status IN ('pending', 'in_progress')
                OR (record.status = 'failed' AND record.next_attempt_at IS NOT NULL)
            )
    );

-- name: progress
-- Statuses of all units of each day, not only of the backfill's units.
SELECT
    day.dataset, day.day, day.state, day.requests, day.requested_at, day.listed_at, day.listed, day.created,
    day.requeued, day.left_out, record.status, count(record.wal_id) AS units
FROM backfill_days AS day
LEFT JOIN nodd_wal_records AS record ON day.dataset = record.dataset AND day.day = record.partition_key
    AND record.status IN ('pending', 'in_progress', 'succeeded', 'failed', 'quarantined')
WHERE day.backfill_id = :backfill_id
GROUP BY
    day.backfill_id, day.dataset, day.day, record.status
ORDER BY day.day, day.dataset, record.status;

-- name: add_days
INSERT INTO backfill_days (backfill_id, dataset, day, state, requests, listed, created, requeued)
SELECT :backfill_id, :dataset, day.value, 'waiting', 0, 0, 0, 0
FROM (@each(:days)) AS day;

-- name: next_days
-- The first waiting day of each running backfill, of the given datasets; the backfill that was served longest ago is
-- first.
WITH next AS (
    SELECT
        day.backfill_id, backfill.created_at, min(day.day) AS day,
        (SELECT max(d.requested_at) FROM backfill_days AS d WHERE d.backfill_id = day.backfill_id) AS served_at
    FROM replay_runs AS backfill
    INNER JOIN backfill_days AS day ON backfill.replay_run_id = day.backfill_id
    WHERE
        backfill.state = 'running' AND day.state = 'waiting'
        AND day.dataset IN (@each(:datasets))
    GROUP BY day.backfill_id, backfill.created_at
)

SELECT next.backfill_id, next.day, day.requests, day.dataset
FROM next
INNER JOIN backfill_days AS day ON next.backfill_id = day.backfill_id AND next.day = day.day
WHERE day.state = 'waiting' AND day.dataset IN (@each(:datasets))
ORDER BY next.served_at NULLS FIRST, next.created_at, next.backfill_id, day.dataset;

-- name: requested
-- Days whose run was requested and has not listed them yet. They are few, because further days wait for them.
SELECT day.backfill_id, day.day, day.requests, day.requested_at, day.dataset
FROM replay_runs AS backfill
INNER JOIN backfill_days AS day ON backfill.replay_run_id = day.backfill_id
WHERE
    backfill.state = 'running' AND day.state = 'requested'
    AND day.dataset IN (@each(:datasets))
ORDER BY day.requested_at, day.backfill_id, day.day, day.dataset;

-- name: request
UPDATE backfill_days SET state = 'requested', requests = requests + 1, requested_at = :at
WHERE
    backfill_id = :backfill_id AND day = :day AND state IN ('waiting', 'requested')
    AND dataset IN (@each(:datasets))
    AND EXISTS (
        SELECT 1 FROM replay_runs AS b WHERE b.replay_run_id = backfill_days.backfill_id AND b.state = 'running'
    )
RETURNING dataset, requests;
