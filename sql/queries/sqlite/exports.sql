-- Statements of the exports for SQLite: a manifest is read by json_each.

-- name: stand_still
-- A transaction sees one state of the database from its first read on.
SELECT 1;

-- name: inputs
-- What each applied content was made from: another content (source_hash), or something from outside. A content is an
-- input when it is named by its hash, or by the artifact that it left; of several that left the same artifact it is the
-- one that the same run had before it, the nearest of the same dataset, else the first one there was.
WITH applied AS (
    SELECT wal_id, run_id, content_hash, payload, payload ->> '$.context.dataset' AS dataset
    FROM etl_wal
    WHERE status = 'APPLIED'
),

needed AS (
    SELECT
        applied.wal_id, applied.run_id, applied.content_hash, applied.dataset, entry.value ->> '$.uri' AS uri,
        coalesce(entry.value ->> '$.checksum', '') AS checksum, coalesce(entry.value ->> '$.etag', '') AS etag
    FROM applied, json_each(applied.payload, '$.inputs') AS entry
),

handed_on AS (
    SELECT
        needed.wal_id, needed.uri, needed.checksum, earlier.content_hash AS source_hash,
        row_number() OVER (
            PARTITION BY needed.wal_id, needed.uri, needed.checksum
            ORDER BY (earlier.payload ->> '$.context.dataset') IS needed.dataset DESC, earlier.wal_id DESC
        ) AS nearness
    FROM needed
    INNER JOIN etl_wal AS earlier
        ON needed.run_id = earlier.run_id AND needed.wal_id > earlier.wal_id
        AND earlier.status IN ('APPLIED', 'SKIPPED')
    INNER JOIN node_output AS output
        ON earlier.content_hash = output.content_hash AND needed.uri = output.record ->> '$.artifact_uri'
        AND needed.checksum = output.record ->> '$.artifact_sha256'
),

first_made AS (
    SELECT
        output.record ->> '$.artifact_uri' AS uri, output.record ->> '$.artifact_sha256' AS checksum,
        min(applied.wal_id) AS wal_id
    FROM applied
    INNER JOIN node_output AS output ON applied.content_hash = output.content_hash
    GROUP BY output.record ->> '$.artifact_uri', output.record ->> '$.artifact_sha256'
),

resolved AS (
    SELECT
        needed.content_hash, coalesce(named.content_hash, handed_on.source_hash, made.content_hash) AS source_hash,
        needed.uri, needed.checksum, needed.etag
    FROM needed
    LEFT JOIN node_output AS named ON needed.checksum = named.content_hash
    LEFT JOIN handed_on
        ON needed.wal_id = handed_on.wal_id AND needed.uri = handed_on.uri
        AND needed.checksum = handed_on.checksum AND handed_on.nearness = 1
    LEFT JOIN first_made
        ON needed.uri = first_made.uri AND needed.checksum = first_made.checksum AND needed.wal_id > first_made.wal_id
    LEFT JOIN etl_wal AS made ON first_made.wal_id = made.wal_id
)

SELECT DISTINCT
    coalesce(source_hash, '') AS source_hash, CASE WHEN source_hash IS NULL THEN uri ELSE '' END AS uri,
    CASE WHEN source_hash IS NULL THEN checksum ELSE '' END AS checksum,
    CASE WHEN source_hash IS NULL THEN etag ELSE '' END AS etag, content_hash
FROM resolved
ORDER BY 1, 2, 3, 4, 5;
