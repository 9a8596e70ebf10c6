-- Gaps of feeds: the followed products, their missing objects, and their arrival times (BEY-05).

-- name: follow
INSERT INTO nodd_feeds (dataset, product, followed_since)
SELECT :dataset, feed.product, feed.since
FROM @batch(:feeds, feed, product text, since time)
WHERE TRUE
@in_order(feed.product)
ON CONFLICT (dataset, product) DO NOTHING;

-- name: listed
INSERT INTO nodd_listed_days (dataset, day, listed_at)
VALUES (:dataset, :day, :at)
ON CONFLICT (dataset, day) DO UPDATE SET listed_at = excluded.listed_at;

-- name: listed_days
SELECT dataset, day FROM nodd_listed_days WHERE day BETWEEN :first AND :last;

-- name: feeds
SELECT dataset, product, followed_since, looked_until FROM nodd_feeds ORDER BY dataset, product;

-- name: looked
UPDATE nodd_feeds SET looked_until = :until
WHERE dataset = :dataset AND (looked_until IS NULL OR looked_until < :until);

-- name: record
-- Opens a gap for each incomplete hour, or updates the existing gap; an unchanged gap is not written.
INSERT INTO nodd_gaps (dataset, product, hour, kind, expected, seen, first_seen)
SELECT :dataset, gap.product, gap.hour, 'hole', gap.expected, gap.seen, @as_time(:at)
FROM @batch(:hours, gap, product text, hour time, expected integer, seen integer)
WHERE gap.seen < gap.expected
@in_order(gap.product)
ON CONFLICT (dataset, product, hour, kind) DO UPDATE SET
    expected = excluded.expected, seen = excluded.seen, closed_at = NULL, repaired_by = NULL
WHERE
    (nodd_gaps.expected, nodd_gaps.seen) <> (excluded.expected, excluded.seen) OR nodd_gaps.closed_at IS NOT NULL
RETURNING product;

-- name: close
-- Closes the gaps of hours that are complete now.
UPDATE nodd_gaps SET seen = whole.seen, closed_at = @as_time(:at), repaired_by = :run_id
FROM @batch(:hours, whole, product text, hour time, expected integer, seen integer)
WHERE
    nodd_gaps.dataset = :dataset AND nodd_gaps.kind = 'hole' AND nodd_gaps.closed_at IS NULL
    AND nodd_gaps.product = whole.product AND nodd_gaps.hour = whole.hour AND whole.seen >= whole.expected
RETURNING @returned(nodd_gaps.product);

-- name: recent
-- Number of each product's objects announced within its windows, read by the index over event times.
SELECT
    feed.dataset, feed.product, count(record.wal_id) AS seen,
    coalesce(sum(CASE WHEN record.event_time > feed.silent_since THEN 1 ELSE 0 END), 0) AS newest
FROM @batch(:feeds, feed, dataset text, product text, groups json, silent_since time, since time)
LEFT JOIN nodd_wal_records AS record
    ON
        record.status IN ('pending', 'in_progress', 'succeeded', 'failed', 'quarantined')
        AND feed.dataset = record.dataset AND record.event_time > feed.since
        AND @holds(record.extension, feed.groups)
GROUP BY feed.dataset, feed.product;

-- name: open_now
-- Opens a silence or a drop. If it begins again within the same hour, the earlier gap is reopened.
INSERT INTO nodd_gaps (dataset, product, hour, kind, expected, seen, first_seen)
SELECT gap.dataset, gap.product, @as_time(:hour), gap.kind, gap.expected, gap.seen, @as_time(:at)
FROM @batch(:gaps, gap, dataset text, product text, kind text, expected integer, seen integer)
WHERE
    NOT EXISTS (
        SELECT 1 FROM nodd_gaps AS begun
        WHERE
            begun.dataset = gap.dataset AND begun.product = gap.product AND begun.kind = gap.kind
            AND begun.closed_at IS NULL
    )
ON CONFLICT (dataset, product, hour, kind) DO UPDATE SET
    expected = excluded.expected, seen = excluded.seen, closed_at = NULL;

-- name: close_now
UPDATE nodd_gaps SET closed_at = @as_time(:at)
FROM @batch(:gaps, over, dataset text, product text, kind text)
WHERE
    nodd_gaps.closed_at IS NULL AND nodd_gaps.dataset = over.dataset AND nodd_gaps.product = over.product
    AND nodd_gaps.kind = over.kind;

-- name: open_days
-- Days with open holes, whose objects may have arrived meanwhile.
SELECT DISTINCT @utc_day(hour) AS day FROM nodd_gaps
WHERE dataset = :dataset AND kind = 'hole' AND closed_at IS NULL AND hour >= :since
ORDER BY day;

-- name: close_unwatched
-- Closes silences and drops of products that are not checked any more: switched off, not followed, or ended.
UPDATE nodd_gaps SET closed_at = @as_time(:at)
WHERE
    closed_at IS NULL AND kind <> 'hole'
    AND NOT EXISTS (
        SELECT 1 FROM @batch(:watched, feed, dataset text, product text)
        WHERE feed.dataset = nodd_gaps.dataset AND feed.product = nodd_gaps.product
    );

-- name: list
SELECT dataset, product, hour, kind, expected, seen, first_seen, closed_at, repaired_by
FROM nodd_gaps
WHERE
    (:dataset IS NULL OR dataset = :dataset) AND (:closed = 1 OR closed_at IS NULL)
    AND (hour >= :since OR (closed_at IS NULL AND kind <> 'hole'))
ORDER BY dataset, product, hour, kind
LIMIT :limit;

-- name: arrivals_of_day
-- Seconds from the start of each announced object of a day to its announcement.
SELECT
    @utc_hour(time_range_start) AS hour, @without(extension, 'peer_sizes') AS extension,
    @seconds(event_time, time_range_start) AS seconds, count(*) AS objects
FROM nodd_wal_records
WHERE
    status IN ('pending', 'in_progress', 'succeeded', 'failed', 'quarantined')
    AND dataset = :dataset AND partition_key = :day AND sqs_message_id IS NOT NULL
GROUP BY 1, 2, 3;

-- name: keep_arrivals
INSERT INTO nodd_arrivals (dataset, product, day, objects, classes, leads)
SELECT :dataset, kept.product, :day, kept.objects, kept.classes, kept.leads
FROM @batch(:arrivals, kept, product text, objects integer, classes json, leads json)
WHERE TRUE
@in_order(kept.product)
ON CONFLICT (dataset, product, day) DO UPDATE SET
    objects = excluded.objects, classes = excluded.classes, leads = excluded.leads;

-- name: arrival_days
SELECT DISTINCT day FROM nodd_arrivals WHERE dataset = :dataset AND day >= :since;

-- name: arrivals
SELECT dataset, product, classes FROM nodd_arrivals
WHERE day BETWEEN :first AND :last AND (:dataset IS NULL OR dataset = :dataset);

-- name: arrivals_by_lead
-- `leads` has the counts by lead. For a product without leads it is empty, and `classes` has the counts of all objects.
SELECT dataset, product, CASE WHEN CAST(leads AS text) = '{}' THEN classes END AS classes, leads FROM nodd_arrivals
WHERE day BETWEEN :first AND :last AND (:dataset IS NULL OR dataset = :dataset);
