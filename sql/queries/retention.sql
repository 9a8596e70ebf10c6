-- Files that retention may delete. Each statement gets hashes of old files, and returns the hashes that a row names and
-- no unit, run or case needs. A file that no row names is kept, whoever wrote it. A batch of hashes costs only one scan
-- of a table, so no table has an index for it.

-- name: landing
-- A landed batch is kept while one of its messages is in flight or was received recently, a unit of a message has not
-- succeeded and is not quarantined, or a case of a unit has no evidence yet, because the evidence contains the message.
SELECT substr(d.landing_sha256, 8) AS digest
FROM nodd_wal_deliveries AS d
WHERE d.landing_sha256 IN (SELECT 'sha256:' || asked.value FROM (@each(:digests)) AS asked)
GROUP BY d.landing_sha256
HAVING sum(
    CASE
        WHEN
            d.state = 'in_flight'
            OR d.received_at >= :before
            OR EXISTS (
                SELECT 1 FROM nodd_wal_delivery_units AS u
                INNER JOIN nodd_wal_records AS r ON u.wal_id = r.wal_id
                WHERE u.message_id = d.message_id AND r.status IN ('pending', 'in_progress', 'failed')
            )
            OR EXISTS (
                SELECT 1 FROM nodd_wal_delivery_units AS u
                INNER JOIN quarantine_cases AS c ON u.wal_id = c.wal_id
                WHERE u.message_id = d.message_id AND c.evidence_uri IS NULL
            )
            THEN 1
        ELSE 0
    END
) = 0;

-- name: artifacts
-- Only outputs of stages; listings and products, which no stage names, are kept. An output is shared by all runs that
-- wrote or reused it. It is kept while one of these runs is young, or has an unfinished stage or unit, or while a
-- pending or failed intent needs it for a replay.
SELECT s.output_sha256 AS digest
FROM stage_state AS s
WHERE s.output_sha256 IN (@each(:digests))
GROUP BY s.output_sha256
HAVING
    max(s.opened_at) < :before
    AND s.output_sha256 NOT IN (
        SELECT i.value ->> 'checksum'
        FROM etl_wal AS w
        CROSS JOIN @rows(w.payload -> 'inputs', i)
        WHERE w.status IN ('PENDING', 'FAILED') AND i.value ->> 'checksum' IS NOT NULL
    )
    AND sum(
        CASE
            WHEN
                s.run_id IN (SELECT o.run_id FROM stage_state AS o WHERE o.state IN ('pending', 'running'))
                OR s.run_id IN (
                    SELECT r.ingest_run_id FROM nodd_wal_records AS r
                    WHERE r.status IN ('pending', 'in_progress', 'failed') AND r.ingest_run_id IS NOT NULL
                )
                THEN 1
            ELSE 0
        END
    ) = 0;

-- name: evidence
-- Evidence is kept while a case that names it is open, or was closed recently.
SELECT c.evidence_sha256 AS digest
FROM quarantine_cases AS c
WHERE c.evidence_sha256 IN (@each(:digests))
GROUP BY c.evidence_sha256
HAVING sum(CASE WHEN c.state = 'open' OR c.closed_at >= :before THEN 1 ELSE 0 END) = 0;

-- name: unsettled_runs
-- Runs with a unit that is pending, in progress or failed.
SELECT DISTINCT r.ingest_run_id AS run_id
FROM nodd_wal_records AS r
WHERE r.status IN ('pending', 'in_progress', 'failed') AND r.ingest_run_id IN (@each(:runs));
