-- Statements of the ledger.

-- name: get
SELECT * FROM nodd_wal_records WHERE wal_id = :wal_id;

-- name: histories
SELECT wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
FROM nodd_wal_transitions
WHERE wal_id IN (@each(:wal_ids))
ORDER BY wal_id, version;

-- name: datasets_of_status
-- One index lookup per dataset, however many records there are.
WITH RECURSIVE found (dataset) AS (
    SELECT min(dataset) FROM nodd_wal_records WHERE status = :status
    UNION ALL
    SELECT (SELECT min(dataset) FROM nodd_wal_records WHERE status = :status AND dataset > found.dataset)
    FROM found
    WHERE found.dataset IS NOT NULL
)

SELECT dataset FROM found WHERE dataset IS NOT NULL;

-- name: pending_by_partition
SELECT dataset, partition_key AS partition, lane, count(*) AS units
FROM nodd_wal_records
WHERE status = 'pending'
GROUP BY dataset, partition_key, lane
ORDER BY dataset, partition_key, lane DESC;

-- name: counts
SELECT dataset, status, count(*) AS units
FROM nodd_wal_records
GROUP BY dataset, status;

-- name: status_counts
SELECT status, count(*) AS units
FROM nodd_wal_records
WHERE
    status IN ('pending', 'in_progress', 'succeeded', 'failed', 'quarantined')
    AND dataset = :dataset AND partition_key BETWEEN :first AND :last
GROUP BY status;

-- name: day_failing
-- Codes of a day's units that need attention, i.e. units without a newer version and without a discarded case.
SELECT record.last_error_code AS code, count(*) AS units
FROM nodd_wal_records AS record
WHERE
    record.status IN ('failed', 'quarantined') AND record.dataset = :dataset AND record.partition_key = :partition
    AND record.last_error_code NOT IN ('superseded', 'stale_event')
    AND NOT EXISTS (
        SELECT 1 FROM quarantine_cases AS closed WHERE closed.wal_id = record.wal_id AND closed.state = 'discarded'
    )
GROUP BY record.last_error_code
ORDER BY record.last_error_code;

-- name: day_failing_units
-- The units that day_failing counts, quarantined units first.
SELECT
    record.wal_id, record.object_uri, record.status, record.attempts, record.last_error_code AS code,
    coalesce(record.last_error_message, '') AS message
FROM nodd_wal_records AS record
WHERE
    record.status IN ('failed', 'quarantined') AND record.dataset = :dataset AND record.partition_key = :partition
    AND record.last_error_code NOT IN ('superseded', 'stale_event')
    AND NOT EXISTS (
        SELECT 1 FROM quarantine_cases AS closed WHERE closed.wal_id = record.wal_id AND closed.state = 'discarded'
    )
ORDER BY record.status DESC, record.event_time DESC, record.wal_id
LIMIT :limit;

-- name: oldest_waiting
SELECT min(created_at) AS oldest_at FROM nodd_wal_records WHERE status IN ('pending', 'failed');

-- name: pending_units
SELECT dataset, count(*) AS units, min(updated_at) AS oldest_at
FROM nodd_wal_records
WHERE status = 'pending'
GROUP BY dataset
ORDER BY dataset;

-- name: failing
-- The counts of day_failing over all days; `retried` units get another attempt automatically.
SELECT
    record.dataset, record.status, record.last_error_code AS code, count(*) AS units,
    count(record.next_attempt_at) AS retried, min(record.updated_at) AS first_at
FROM nodd_wal_records AS record
WHERE
    record.status IN ('failed', 'quarantined') AND record.last_error_code NOT IN ('superseded', 'stale_event')
    AND NOT EXISTS (
        SELECT 1 FROM quarantine_cases AS closed WHERE closed.wal_id = record.wal_id AND closed.state = 'discarded'
    )
GROUP BY record.dataset, record.status, record.last_error_code
ORDER BY record.dataset, record.status, record.last_error_code;

-- name: in_progress_runs
SELECT DISTINCT ingest_run_id FROM nodd_wal_records WHERE status = 'in_progress' ORDER BY ingest_run_id;

-- name: in_flight
-- Units of later days wait for their day, so they do not count as in flight; otherwise they would delay other units.
SELECT count(*) FROM nodd_wal_records
WHERE status IN ('pending', 'in_progress') AND partition_key <= :today AND (:lane IS NULL OR lane = :lane);

-- name: holds
SELECT EXISTS (
    SELECT 1 FROM nodd_wal_records
    WHERE
        status = :status AND dataset = :dataset AND partition_key = :partition
        AND (CAST(:run_id AS text) IS NULL OR ingest_run_id = :run_id)
) AS found;

-- name: replay_reasons
SELECT code, meaning FROM replay_reasons ORDER BY code;

-- name: govern_replay_reason
INSERT INTO replay_reasons (code, meaning) VALUES (:code, :meaning) ON CONFLICT (code) DO NOTHING;

-- name: acquire_lease
INSERT INTO nodd_wal_leases (ingest_run_id, dataset, worker_id, acquired_at, renewed_at, expires_at)
VALUES (:run_id, :dataset, :worker_id, :at, :at, :expires_at)
ON CONFLICT (ingest_run_id, dataset) DO UPDATE SET
    worker_id = excluded.worker_id, renewed_at = excluded.renewed_at, expires_at = excluded.expires_at;

-- name: drop_leases
-- Expired leases of runs without a claim.
DELETE FROM nodd_wal_leases
WHERE expires_at < :at AND NOT EXISTS (
    SELECT 1 FROM nodd_wal_records AS record
    WHERE
        record.status = 'in_progress' AND record.ingest_run_id = nodd_wal_leases.ingest_run_id
        AND record.dataset = nodd_wal_leases.dataset
);

-- name: leases
SELECT ingest_run_id AS run_id, dataset, worker_id, acquired_at, renewed_at, expires_at FROM nodd_wal_leases
ORDER BY expires_at, ingest_run_id, dataset;

-- name: versions_of
-- Every version of a unit's object, with the version that made it obsolete.
SELECT sibling.wal_id, sibling.object_version, sibling.sequencer, sibling.event_time, sibling.status,
    link.newer_wal_id AS superseded_by
FROM nodd_wal_records AS record
INNER JOIN nodd_wal_records AS sibling
    ON record.object_uri = sibling.object_uri AND record.dataset = sibling.dataset
    AND record.time_range_start = sibling.time_range_start
LEFT JOIN nodd_wal_supersessions AS link ON sibling.wal_id = link.older_wal_id
WHERE record.wal_id = :wal_id
ORDER BY sibling.event_time, sibling.wal_id;

-- name: mismatches
SELECT
    made.wal_id, record.dataset, made.attempt, made.differs_from AS earlier_attempt, made.at, made.replay_run_id,
    made.item_sha256 IS DISTINCT FROM earlier.item_sha256 AS item_differs,
    made.provenance_sha256 IS DISTINCT FROM earlier.provenance_sha256 AS provenance_differs, made.permitted
FROM nodd_wal_outcomes AS made
INNER JOIN nodd_wal_outcomes AS earlier ON made.wal_id = earlier.wal_id AND made.differs_from = earlier.attempt
INNER JOIN nodd_wal_records AS record ON made.wal_id = record.wal_id
WHERE made.permitted IS NOT NULL
ORDER BY made.at DESC, made.wal_id
LIMIT :limit;

-- name: mismatch_counts
SELECT record.dataset, count(*) AS mismatches
FROM nodd_wal_outcomes AS made
INNER JOIN nodd_wal_records AS record ON made.wal_id = record.wal_id
WHERE made.permitted IS NOT NULL AND NOT made.permitted
GROUP BY record.dataset
ORDER BY record.dataset;

-- name: waiting
-- Event times of live units that are pending or in progress, by nearest rank: half of the units are from half_at or
-- later, 90 % from most_at, 99 % from nearly_all_at, all from oldest_at. The limit of units in flight bounds the rows.
WITH waiting AS (
    SELECT
        queue, event_time,
        row_number() OVER (PARTITION BY queue ORDER BY event_time DESC, wal_id) AS place,
        count(*) OVER (PARTITION BY queue) AS units
    FROM nodd_wal_records
    WHERE status IN ('pending', 'in_progress') AND lane = 'live'
)

SELECT
    queue,
    max(CASE WHEN place = (units * 50 + 99) / 100 THEN event_time END) AS half_at,
    max(CASE WHEN place = (units * 90 + 99) / 100 THEN event_time END) AS most_at,
    max(CASE WHEN place = (units * 99 + 99) / 100 THEN event_time END) AS nearly_all_at,
    min(event_time) AS oldest_at
FROM waiting
GROUP BY queue
ORDER BY queue;

-- name: ensure
INSERT INTO nodd_wal_records (
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, status, attempts,
    integrity_status, metadata_status, stac_status, provenance_status, created_at, updated_at, version,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, changed_by, change_reason, extension, lane
)
SELECT
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, 'pending', 0,
    'unknown', 'unknown', 'unknown', 'unknown', @as_time(:at), @as_time(:at), 1,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, :actor, 'discovered', extension, :lane
FROM @batch(:batch, unit,
    wal_id text, dataset text, object_uri text, provider text, queue text, event_time time,
    time_range_start time, time_range_end time, object_version text, object_size bigint,
    sequencer text, partition_key text, priority text, schema_version text, sqs_message_id text,
    sns_message_id text, topic_arn text, subject text, extension json
)
WHERE TRUE
@in_order(wal_id)
ON CONFLICT (wal_id) DO NOTHING
RETURNING wal_id;

-- name: statuses
SELECT wal_id, status, version, ingest_run_id FROM nodd_wal_records
WHERE wal_id IN (@each(:wal_ids));

-- name: supersede
-- A version is newer if its sequencer is greater (padded with zeros on the right; S3 event message structure), or, if
-- either version has no sequencer, if its event is later. Of several newer versions the one with the greatest sequencer
-- counts, then the latest event. Versions are ranked, not compared in pairs, because a message can announce 5,000
-- versions of an object.
WITH touched AS (
    SELECT DISTINCT fresh.object_uri, fresh.dataset, fresh.time_range_start
    FROM nodd_wal_records AS fresh
    WHERE
        fresh.wal_id IN (@each(:wal_ids))
        AND EXISTS (
            SELECT 1 FROM nodd_wal_records AS other
            WHERE
                other.object_uri = fresh.object_uri AND other.dataset = fresh.dataset
                AND other.time_range_start = fresh.time_range_start AND other.wal_id <> fresh.wal_id
        )
),

version AS (
    SELECT
        record.wal_id, record.object_uri, record.dataset, record.time_range_start, record.event_time,
        @bytewise(substr(record.sequencer || '0000000000000000000000000000000000000000000000000000000000000000', 1, 64))
        AS place
    FROM touched
    INNER JOIN nodd_wal_records AS record
        ON touched.object_uri = record.object_uri AND touched.dataset = record.dataset
        AND touched.time_range_start = record.time_range_start
),

ranked AS (
    SELECT
        wal_id, event_time, place,
        max(place) OVER object AS last_place,
        first_value(wal_id) OVER (
            PARTITION BY object_uri, dataset, time_range_start
            ORDER BY (place IS NULL), place DESC, event_time DESC, wal_id
        ) AS last_in_place,
        max(CASE WHEN place IS NULL THEN event_time END) OVER object AS last_time,
        first_value(wal_id) OVER (
            PARTITION BY object_uri, dataset, time_range_start
            ORDER BY (place IS NOT NULL), event_time DESC, wal_id
        ) AS last_in_time,
        -- For a version without a sequencer: the greatest sequencer of the versions with a later event.
        max(place || @utc_text(event_time) || wal_id) OVER (
            PARTITION BY object_uri, dataset, time_range_start ORDER BY event_time DESC
            GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS later
    FROM version
    WINDOW object AS (PARTITION BY object_uri, dataset, time_range_start)
),

link AS (
    SELECT
        wal_id AS older_wal_id,
        CASE
            WHEN place < last_place THEN last_in_place
            WHEN place IS NULL AND later IS NOT NULL THEN substr(later, length(later) - 35)
            WHEN event_time < last_time THEN last_in_time
        END AS newer
    FROM ranked
)

INSERT INTO nodd_wal_supersessions (older_wal_id, newer_wal_id, found_at)
SELECT older_wal_id, newer, @as_time(:at) FROM link
WHERE newer IS NOT NULL AND @unless_there(nodd_wal_supersessions, link, older_wal_id)
@in_order(older_wal_id)
ON CONFLICT (older_wal_id) DO NOTHING
RETURNING older_wal_id;

-- name: lacking_sidecars
-- Units of these objects that a sidecar may complete: in progress, or succeeded with suspect metadata. Superseded units,
-- completions, and units with a pending or a complete (ok) completion are left out. A completion's version begins with
-- the object's version and a blank.
SELECT
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, priority,
    schema_version, object_version, object_size, sequencer, sqs_message_id, sns_message_id, topic_arn, subject,
    attempts, version, lane, replay_reason, replay_run_id, extension
FROM nodd_wal_records AS record
WHERE
    object_uri IN (@each(:uris))
    AND (status || '' = 'in_progress' OR (status || '' = 'succeeded' AND metadata_status = 'suspect'))
    AND replace(coalesce(object_version, ''), ' ', '') = coalesce(object_version, '')
    AND NOT EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = record.wal_id)
    AND NOT EXISTS (
        SELECT 1 FROM nodd_wal_records AS completion
        WHERE
            completion.object_uri = record.object_uri AND completion.dataset = record.dataset
            AND completion.time_range_start = record.time_range_start
            AND substr(completion.object_version, 1, length(coalesce(record.object_version, '')) + 1)
            = coalesce(record.object_version, '') || ' '
            AND (
                completion.status || '' = 'pending'
                OR (completion.status || '' = 'succeeded' AND completion.metadata_status = 'ok')
            )
    )
ORDER BY wal_id;

-- name: endless_volumes
-- For each new chunk, up to two volumes of its radar have ended: the volume before the chunk's own, and the chunk's own
-- if the radar has a later one. Returns the newest chunk of each volume, unless this chunk is the volume's end (kind E)
-- or has a closing. Chunks in quarantine are ignored.
WITH touched AS (
    SELECT
        fresh.dataset, fresh.extension ->> 'site' AS site, fresh.time_range_start AS began,
        min(fresh.sqs_message_id) AS sqs_message_id
    FROM nodd_wal_records AS fresh
    WHERE fresh.wal_id IN (@each(:wal_ids))
    GROUP BY fresh.dataset, fresh.extension ->> 'site', fresh.time_range_start
),

past AS (
    SELECT touched.dataset, touched.site, touched.began, touched.sqs_message_id
    FROM touched
    WHERE EXISTS (
        SELECT 1 FROM nodd_wal_records AS later
        WHERE
            later.dataset = touched.dataset AND later.extension ->> 'site' = touched.site
            AND later.time_range_start > touched.began AND later.extension ->> 'chunk' IS NOT NULL
    )
    UNION ALL
    SELECT
        touched.dataset, touched.site, (
            SELECT max(earlier.time_range_start) FROM nodd_wal_records AS earlier
            WHERE
                earlier.dataset = touched.dataset AND earlier.extension ->> 'site' = touched.site
                AND earlier.time_range_start < touched.began AND earlier.extension ->> 'chunk' IS NOT NULL
        ),
        touched.sqs_message_id
    FROM touched
),

newest AS (
    SELECT past.sqs_message_id, (
        SELECT chunk.wal_id FROM nodd_wal_records AS chunk
        WHERE
            chunk.dataset = past.dataset AND chunk.extension ->> 'site' = past.site
            AND chunk.time_range_start = past.began AND chunk.extension ->> 'chunk' IS NOT NULL
            AND chunk.object_version IS NULL AND chunk.status || '' <> 'quarantined'
        ORDER BY chunk.extension ->> 'chunk' DESC
        LIMIT 1
    ) AS wal_id
    FROM past
)

SELECT
    record.wal_id, record.dataset, record.object_uri, record.provider, record.queue, record.event_time,
    record.time_range_start, record.time_range_end, record.priority, record.schema_version, record.object_version,
    record.object_size, record.sequencer, newest.sqs_message_id, record.attempts, record.version, record.lane,
    record.replay_reason, record.replay_run_id, record.extension
FROM newest
INNER JOIN nodd_wal_records AS record ON newest.wal_id = record.wal_id
WHERE
    record.extension ->> 'kind' <> 'E'
    AND NOT EXISTS (
        SELECT 1 FROM nodd_wal_records AS closing
        WHERE
            closing.object_uri = record.object_uri AND closing.dataset = record.dataset
            AND closing.time_range_start = record.time_range_start AND closing.object_version = :closed
    )
ORDER BY record.wal_id;

-- name: superseded_of
SELECT older_wal_id FROM nodd_wal_supersessions
WHERE older_wal_id IN (@each(:wal_ids));

-- name: hold
-- Locks these claims, so that no other transaction revokes or settles them until this transaction ends.
SELECT record.wal_id, record.dataset
FROM nodd_wal_records AS record
INNER JOIN @batch(:batch, unit, wal_id text, attempt integer)
    ON record.wal_id = unit.wal_id AND record.attempts = unit.attempt
WHERE record.status || '' = 'in_progress' AND record.ingest_run_id = :run_id
@in_order(record.wal_id)
@lock(FOR SHARE OF record);

-- name: renew_leases
-- Only if the run still has one of the claims in the batch, with the same worker and attempt.
UPDATE nodd_wal_leases AS lease SET renewed_at = :at, expires_at = :expires_at
WHERE
    lease.ingest_run_id = :run_id AND lease.worker_id = :worker_id
    AND EXISTS (
        SELECT 1 FROM nodd_wal_records AS record
        INNER JOIN @batch(:batch, unit, wal_id text, attempt integer)
            ON record.wal_id = unit.wal_id AND record.attempts = unit.attempt
        WHERE
            record.status || '' = 'in_progress' AND record.worker_id = lease.worker_id AND record.dataset = lease.dataset
    );

-- name: lock_statuses
SELECT wal_id, status, version FROM nodd_wal_records
WHERE wal_id IN (@each(:wal_ids))
@in_order(wal_id)
@lock(FOR UPDATE);

-- name: batch_bounds
-- batch_limit: how many units of dead runs may be claimed together (NULL without such units). claimed_limit: the least
-- limit of the units that the run has claimed in any dataset.
SELECT
    (
        SELECT min(batch_limit) FROM nodd_wal_records @indexed_by(nodd_wal_records_bisected)
        WHERE
            status = 'pending' AND dataset = :dataset AND partition_key = :partition AND batch_limit IS NOT NULL
            AND (:lane IS NULL OR lane = :lane)
    ) AS batch_limit,
    min(claimed.batch_limit) AS claimed_limit, count(*) AS claimed
FROM nodd_wal_records AS claimed @indexed_by(nodd_wal_records_in_progress)
WHERE claimed.status = 'in_progress' AND claimed.ingest_run_id = :run_id;

-- name: claim
-- sqlite: by rowid, so that a selected row is not searched again.
UPDATE nodd_wal_records SET
    status = 'in_progress',
    attempts = nodd_wal_records.attempts + 1,
    last_attempt_at = @latest(nodd_wal_records.updated_at, @as_time(:at)),
    updated_at = @latest(nodd_wal_records.updated_at, @as_time(:at)),
    ingest_run_id = :run_id,
    worker_id = :worker_id,
    changed_by = :worker_id,
    change_reason = 'claimed',
    version = nodd_wal_records.version + 1
FROM (
    SELECT rowid AS place FROM nodd_wal_records
    WHERE
        status = 'pending' AND dataset = :dataset AND partition_key = :partition
        AND (:lane IS NULL OR lane = :lane)
        AND (:wal_ids IS NULL OR wal_id IN (SELECT value FROM json_each(:wal_ids)))
        AND (:batch_limit IS NULL OR batch_limit = :batch_limit)
    ORDER BY lane DESC, (CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END), event_time, wal_id
    LIMIT :limit
) AS picked
WHERE nodd_wal_records.rowid = picked.place
RETURNING
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, priority,
    schema_version, object_version, object_size, sequencer, sqs_message_id, sns_message_id, topic_arn, subject,
    attempts, version, lane, replay_reason, replay_run_id, extension;

-- name: claim
-- postgresql: rows that another run is claiming, or a newer version is superseding, are skipped without waiting.
WITH picked AS (
    SELECT wal_id, version FROM nodd_wal_records
    WHERE
        status = 'pending' AND dataset = :dataset AND partition_key = :partition
        AND (:lane IS NULL OR lane = :lane)
        AND (
            CAST(:wal_ids AS jsonb) IS NULL
            OR wal_id IN (SELECT jsonb_array_elements_text(CAST(:wal_ids AS jsonb)))
        )
        AND (CAST(:batch_limit AS integer) IS NULL OR batch_limit = :batch_limit)
    ORDER BY lane DESC, (CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END), event_time, wal_id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)

UPDATE nodd_wal_records AS record SET
    status = 'in_progress',
    attempts = record.attempts + 1,
    last_attempt_at = @latest(record.updated_at, @as_time(:at)),
    updated_at = @latest(record.updated_at, @as_time(:at)),
    ingest_run_id = :run_id,
    worker_id = :worker_id,
    changed_by = :worker_id,
    change_reason = 'claimed',
    version = picked.version + 1
FROM picked
WHERE record.wal_id = picked.wal_id AND record.version = picked.version
RETURNING
    record.wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, priority,
    schema_version, object_version, object_size, sequencer, sqs_message_id, sns_message_id, topic_arn, subject,
    attempts, record.version, lane, replay_reason, replay_run_id, extension;

-- name: attempts
-- Attributes of an attempt's trace, except for its outcome.
SELECT
    record.wal_id, record.dataset, record.object_uri, record.provider, record.lane, record.attempts,
    record.last_attempt_at, record.ingest_run_id, record.replay_reason, record.replay_run_id, record.stac_item_id,
    (
        SELECT outcome.run_id FROM nodd_wal_outcomes AS outcome
        WHERE outcome.wal_id = record.wal_id AND outcome.attempt < record.attempts
        ORDER BY outcome.attempt DESC LIMIT 1
    ) AS original_run_id
FROM nodd_wal_records AS record
WHERE record.wal_id IN (@each(:wal_ids));

-- name: lasting_items
-- Units whose Item is never withdrawn: succeeded units, and quarantined units whose current Item has valid lineage.
SELECT record.wal_id FROM nodd_wal_records AS record
WHERE
    record.wal_id IN (@each(:wal_ids))
    AND (
        record.status = 'succeeded'
        OR (
            record.status = 'quarantined' AND EXISTS (
                SELECT 1 FROM catalog_items AS item
                INNER JOIN lineage_emissions AS emission
                    ON item.wal_id = emission.wal_id AND item.content_sha256 = emission.content_sha256
                INNER JOIN lineage_batches AS batch ON emission.batch_id = batch.batch_id
                WHERE item.wal_id = record.wal_id AND batch.invalidated_by IS NULL
            )
        )
    );

-- name: settle
-- Ends attempts as succeeded or failed; a failure without an Item keeps the location of an earlier Item.
UPDATE nodd_wal_records AS record SET
    status = :status,
    last_error_code = unit.error_code,
    last_error_message = unit.error_message,
    integrity_status = unit.integrity_status,
    metadata_status = unit.metadata_status,
    stac_status = unit.stac_status,
    provenance_status = unit.provenance_status,
    stac_item_id = coalesce(unit.stac_item_id, record.stac_item_id),
    stac_collection_id = coalesce(unit.stac_collection_id, record.stac_collection_id),
    stac_item_href = coalesce(unit.stac_item_href, record.stac_item_href),
    next_attempt_at = unit.next_attempt_at,
    updated_at = @latest(record.updated_at, @as_time(:at)),
    changed_by = :actor,
    change_reason = coalesce(unit.error_code, 'completed'),
    batch_limit = NULL,
    version = version + 1
FROM @batch(:batch, unit,
    wal_id text, attempt integer, error_code text, error_message text, next_attempt_at time,
    integrity_status text, metadata_status text, stac_status text, provenance_status text, stac_item_id text,
    stac_collection_id text, stac_item_href text
)
WHERE
    record.wal_id = unit.wal_id AND record.attempts = unit.attempt
    AND record.status || '' = 'in_progress' AND record.ingest_run_id = :run_id
RETURNING @returned(
    record.wal_id, record.dataset, record.created_at, record.replay_reason, record.attempts, record.last_error_code,
    record.ingest_run_id, record.stac_item_id
);

-- name: fail_claims
-- Fails the claims of the named runs, or with an expired lease. Their units are due immediately. If a unit cannot be
-- requeued yet, because its dataset is switched off, a later tick requeues it. A claim whose row another transaction
-- has locked is skipped: its worker is alive.
UPDATE nodd_wal_records @indexed_by(nodd_wal_records_in_progress) SET
    status = 'failed',
    last_error_code = :error_code,
    last_error_message = :error_message,
    next_attempt_at = :at,
    updated_at = @latest(nodd_wal_records.updated_at, @as_time(:at)),
    changed_by = :actor,
    change_reason = :error_code,
    version = version + 1
WHERE @locked(
    nodd_wal_records, wal_id, FOR NO KEY UPDATE SKIP LOCKED,
    status = 'in_progress' AND (ingest_run_id, dataset) IN (
        SELECT lease.ingest_run_id, lease.dataset FROM nodd_wal_leases AS lease
        WHERE
            lease.expires_at < @as_time(:expired_at) OR (
                lease.ingest_run_id IN (@each(:run_ids))
                AND (CAST(:dataset AS text) IS NULL OR lease.dataset = :dataset)
            )
    )
)
RETURNING wal_id, dataset, attempts, last_error_code, ingest_run_id, batch_limit;

-- name: requeue
UPDATE nodd_wal_records SET
    status = 'pending',
    replay_reason = :reason,
    -- A retry keeps the replay that requeued the unit.
    replay_run_id = CASE WHEN :reason = 'retry' THEN replay_run_id ELSE :replay_run_id END,
    lane = coalesce(:lane, lane),
    ingest_run_id = coalesce(:run_id, ingest_run_id),
    next_attempt_at = NULL,
    batch_limit = coalesce(CAST(:batch_limit AS integer), batch_limit),
    updated_at = @latest(nodd_wal_records.updated_at, @as_time(:at)),
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
WHERE @locked(
    nodd_wal_records, wal_id, FOR NO KEY UPDATE,
    wal_id IN (@each(:wal_ids)) AND status || '' = 'failed'
    AND EXISTS (
        SELECT 1
        FROM @batch(:policy, policy, dataset text, max_attempts integer, attempts_of json, never json)
        WHERE
            policy.dataset = nodd_wal_records.dataset
            AND (
                CAST(:batch_limit AS integer) IS NOT NULL
                OR attempts < coalesce(CAST(policy.attempts_of ->> last_error_code AS integer), policy.max_attempts)
            )
            AND NOT @has(policy.never, last_error_code)
    )
    -- An object that has been overwritten cannot be read any more.
    AND NOT EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = nodd_wal_records.wal_id)
)
RETURNING wal_id, dataset, partition_key, attempts, last_error_code, ingest_run_id;

-- name: due
SELECT wal_id
FROM nodd_wal_records @indexed_by(nodd_wal_records_by_due_time)
WHERE
    status = 'failed' AND next_attempt_at <= :at
    AND dataset IN (@each(:datasets))
ORDER BY next_attempt_at, wal_id
LIMIT :limit
@lock(FOR UPDATE SKIP LOCKED);

-- name: decide
-- Logs a person's decision on records at a version, with the approver, if any; omits records that have another version
-- or status now, and discarded units.
WITH unit AS (
    SELECT record.wal_id, record.version, record.dataset, record.status
    FROM nodd_wal_records AS record
    INNER JOIN @batch(:batch, wanted, wal_id text, version integer)
        ON record.wal_id = wanted.wal_id AND record.version = wanted.version
    WHERE
        record.status || '' = :from_status
        AND NOT EXISTS (
            SELECT 1 FROM quarantine_cases AS c
            WHERE c.wal_id = record.wal_id AND c.quarantined_version = record.version AND c.state = 'discarded'
        )
    @in_order(record.wal_id)
    @lock(FOR UPDATE OF record)
)

INSERT INTO governance_log (
    at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details,
    proposal_id, approved_by
)
SELECT
    @as_time(:at), :actor, :action, unit.dataset, unit.wal_id, unit.version + 1, unit.status, :to_status, :why,
    :change_ref, @as_json(:details), approval.proposal_id, approval.actor
FROM unit
LEFT JOIN governance_log AS approval ON approval.entry_id = (
    SELECT max(a.entry_id) FROM override_units AS u
    INNER JOIN governance_log AS p ON u.proposal_id = p.entry_id AND p.actor = :actor
    INNER JOIN governance_log AS a
        ON u.proposal_id = a.proposal_id AND a.record_version IS NULL AND a.action = 'override_approved'
    WHERE u.wal_id = unit.wal_id AND u.version = unit.version AND u.action = :action
)
ORDER BY unit.wal_id
RETURNING wal_id;

-- name: override
UPDATE nodd_wal_records AS record SET
    status = 'pending',
    replay_reason = :reason,
    replay_run_id = :replay_run_id,
    lane = 'bulk',
    updated_at = @latest(record.updated_at, @as_time(:at)),
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
WHERE
    record.wal_id IN (@each(:wal_ids))
    AND record.status || '' = :from_status
RETURNING @returned(record.wal_id, record.dataset, record.attempts, record.last_error_code, record.ingest_run_id);

-- name: record_outcomes
-- Compares each success with the previous success of its unit.
INSERT INTO nodd_wal_outcomes (
    wal_id, attempt, at, run_id, replay_run_id, item_sha256, provenance_sha256, code_version, superseded, differs_from,
    permitted
)
SELECT
    made.wal_id, made.attempt, @as_time(:at), :run_id, made.replay_run_id, made.item_sha256, made.provenance_sha256,
    :code_version, made.superseded, earlier.attempt,
    CASE
        WHEN earlier.attempt IS NOT NULL THEN coalesce((
            SELECT decision.action = 'repair_and_replace'
            FROM governance_log AS decision
            WHERE decision.wal_id = made.wal_id AND decision.from_status = 'succeeded'
            ORDER BY decision.record_version DESC
            LIMIT 1
        ), FALSE)
    END
FROM @batch(:batch, made,
    wal_id text, attempt integer, replay_run_id text, item_sha256 text, provenance_sha256 text, superseded boolean
)
LEFT JOIN nodd_wal_outcomes AS earlier
    ON
        made.wal_id = earlier.wal_id AND earlier.attempt = (
            SELECT max(before.attempt) FROM nodd_wal_outcomes AS before
            WHERE before.wal_id = made.wal_id AND before.attempt < made.attempt
        )
        AND NOT made.superseded AND NOT earlier.superseded AND (
            made.item_sha256 IS DISTINCT FROM earlier.item_sha256
            OR made.provenance_sha256 IS DISTINCT FROM earlier.provenance_sha256
        )
@in_order(made.wal_id)
RETURNING wal_id, attempt, differs_from, permitted;

-- name: quarantine
UPDATE nodd_wal_records SET
    status = 'quarantined',
    last_error_code = coalesce(last_error_code, :reason),
    next_attempt_at = NULL,
    updated_at = @latest(nodd_wal_records.updated_at, @as_time(:at)),
    changed_by = :actor,
    change_reason = :reason,
    version = version + 1
WHERE @locked(
    nodd_wal_records, wal_id, FOR NO KEY UPDATE,
    wal_id IN (@each(:wal_ids)) AND status || '' IN ('pending', 'failed')
)
RETURNING wal_id, dataset, attempts, last_error_code, ingest_run_id, batch_limit;
