-- Statements of the exports; they only read.

-- name: collections
SELECT
    collection.collection_id, collection.dataset, collection.title,
    (SELECT count(*) FROM catalog_items AS item WHERE item.collection_id = collection.collection_id) AS items,
    (SELECT min(item.updated_at) FROM catalog_items AS item WHERE item.collection_id = collection.collection_id)
    AS first_at,
    (SELECT max(item.updated_at) FROM catalog_items AS item WHERE item.collection_id = collection.collection_id)
    AS changed_at
FROM catalog_collections AS collection
ORDER BY collection.collection_id;

-- name: latest_run
-- The run that last ended a node of a dataset; runs of old releases, without intents, are only in run_state.
SELECT found.run_id
FROM (
    SELECT run_id, recorded_at AS at FROM run_state
    WHERE substr(dataset_id, 1, length(:dataset) + 1) = :dataset || '.'
    UNION ALL
    SELECT coalesce(payload -> 'context' ->> 'run_id', CAST(run_id AS text)), started_at FROM etl_wal
    WHERE substr(node, 1, length(:dataset) + 1) = :dataset || '.' AND status <> 'PENDING'
) AS found
ORDER BY found.at DESC, found.run_id DESC
LIMIT 1;

-- name: activities
-- Each node of a run, as one row, however many contents the node applied.
SELECT
    CAST(run_id AS text) AS run_id, node, step, min(started_at) AS started_at, max(applied_at) AS ended_at
FROM etl_wal
WHERE status = 'APPLIED'
GROUP BY run_id, node, step
ORDER BY min(wal_id);

-- name: generations
SELECT content_hash, CAST(run_id AS text) AS run_id, node, step
FROM etl_wal
WHERE status = 'APPLIED'
ORDER BY wal_id;

-- name: artifacts
-- The file that a node wrote besides its batch, else the batch.
SELECT
    output.content_hash, intent.node, intent.step,
    COALESCE(output.record -> 'artifact' ->> 'uri', output.record ->> 'artifact_uri') AS uri,
    COALESCE(output.record -> 'artifact' ->> 'sha256', output.record ->> 'artifact_sha256') AS sha256,
    output.record ->> 'outcome' AS outcome, output.valid_from, output.valid_to
FROM etl_wal AS intent
INNER JOIN node_output AS output ON intent.content_hash = output.content_hash
WHERE intent.status = 'APPLIED'
ORDER BY intent.wal_id;

-- name: objects
-- Every version of an object that has had an Item; one row, even if it is a unit of several datasets. Objects without an
-- Item may be confidential, so they are not named.
SELECT DISTINCT @bytewise(record.object_uri) AS object_uri, @bytewise(record.object_version) AS object_version
FROM nodd_wal_records AS record
WHERE record.wal_id IN (SELECT promotion.wal_id FROM catalog_promotions AS promotion)
ORDER BY 1, 2;

-- name: items
-- Every completed write of an Item, with its object and, if the node ended, the node and run that wrote it. A promotion
-- that is not current, and was neither replaced nor withdrawn, is omitted: its writer died.
SELECT
    promotion.promotion_id, promotion.collection_id, promotion.item_id, promotion.partition_key, promotion.after_sha256,
    promotion.logged_at, record.object_uri, record.object_version, made.run_id, made.node, made.step,
    CASE
        WHEN item.item_id IS NOT NULL THEN 'current'
        WHEN promotion.withdrawn_at IS NOT NULL THEN 'withdrawn'
        ELSE 'replaced'
    END AS state,
    CASE WHEN item.item_id IS NULL THEN coalesce(promotion.withdrawn_at, later.replaced_at) END AS ended_at
FROM catalog_promotions AS promotion
LEFT JOIN catalog_items AS item
    ON promotion.collection_id = item.collection_id AND promotion.item_id = item.item_id
    AND promotion.promotion_id = item.promotion_id
LEFT JOIN (
    SELECT before_promotion_id, max(logged_at) AS replaced_at FROM catalog_promotions
    WHERE before_promotion_id IS NOT NULL
    GROUP BY before_promotion_id
) AS later ON promotion.promotion_id = later.before_promotion_id
LEFT JOIN nodd_wal_records AS record ON promotion.wal_id = record.wal_id
LEFT JOIN (
    -- A run has one day, so it has one such node for a dataset, however many contents the node applied.
    SELECT
        payload -> 'context' ->> 'run_id' AS named_run, payload -> 'context' ->> 'dataset' AS dataset,
        min(CAST(run_id AS text)) AS run_id, min(node) AS node, min(step) AS step
    FROM etl_wal
    WHERE status = 'APPLIED' AND payload -> 'context' ->> 'operator' = :operator
    GROUP BY payload -> 'context' ->> 'run_id', payload -> 'context' ->> 'dataset'
) AS made ON promotion.run_id = made.named_run AND promotion.dataset = made.dataset
WHERE
    item.item_id IS NOT NULL OR promotion.withdrawn_at IS NOT NULL OR later.before_promotion_id IS NOT NULL
ORDER BY promotion.promotion_id;

-- name: claims
-- The units of Items that each run claimed, by object.
SELECT DISTINCT
    CAST(intent.run_id AS text) AS run_id, intent.node, intent.step, @bytewise(record.object_uri) AS object_uri,
    @bytewise(record.object_version) AS object_version
FROM etl_wal AS intent
INNER JOIN nodd_wal_transitions AS claim
    ON claim.to_status = 'in_progress' AND claim.run_id = intent.payload -> 'context' ->> 'run_id'
INNER JOIN nodd_wal_records AS record
    ON claim.wal_id = record.wal_id AND record.dataset = intent.payload -> 'context' ->> 'dataset'
WHERE
    intent.status = 'APPLIED' AND intent.payload -> 'context' ->> 'operator' = :operator
    AND record.wal_id IN (SELECT promotion.wal_id FROM catalog_promotions AS promotion)
ORDER BY 1, 2, 3, 4, 5;

-- name: stand_still
-- sqlite: a transaction reads a single state of the database from its first read on.
SELECT 1;

-- name: stand_still
-- postgresql: as a transaction's first statement, it makes all later ones read a single state of the database.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: inputs
-- The sources of each applied content: another content (source_hash), or an input from outside. An input is another
-- content if it has that content's hash or artifact. If several contents have the same artifact, the source is a
-- content that the same run applied or skipped before (one of the same dataset first, then the latest), else the content
-- that was applied first.
WITH applied AS (
    SELECT wal_id, run_id, content_hash, payload, payload -> 'context' ->> 'dataset' AS dataset
    FROM etl_wal
    WHERE status = 'APPLIED'
),

needed AS (
    SELECT
        applied.wal_id, applied.run_id, applied.content_hash, applied.dataset, entry.value ->> 'uri' AS uri,
        coalesce(entry.value ->> 'checksum', '') AS checksum, coalesce(entry.value ->> 'etag', '') AS etag
    FROM applied
    CROSS JOIN @rows(applied.payload -> 'inputs', entry)
),

reused AS (
    SELECT
        needed.wal_id, needed.uri, needed.checksum, earlier.content_hash AS source_hash,
        row_number() OVER (
            PARTITION BY needed.wal_id, needed.uri, needed.checksum
            ORDER BY (earlier.payload -> 'context' ->> 'dataset') IS NOT DISTINCT FROM needed.dataset DESC, earlier.wal_id DESC
        ) AS nearness
    FROM needed
    INNER JOIN etl_wal AS earlier
        ON needed.run_id = earlier.run_id AND needed.wal_id > earlier.wal_id
        AND earlier.status IN ('APPLIED', 'SKIPPED')
    INNER JOIN node_output AS output
        ON earlier.content_hash = output.content_hash AND needed.uri = output.record ->> 'artifact_uri'
        AND needed.checksum = output.record ->> 'artifact_sha256'
),

first_made AS (
    SELECT
        output.record ->> 'artifact_uri' AS uri, output.record ->> 'artifact_sha256' AS checksum,
        min(applied.wal_id) AS wal_id
    FROM applied
    INNER JOIN node_output AS output ON applied.content_hash = output.content_hash
    GROUP BY output.record ->> 'artifact_uri', output.record ->> 'artifact_sha256'
),

resolved AS (
    SELECT
        needed.content_hash, coalesce(named.content_hash, reused.source_hash, made.content_hash) AS source_hash,
        needed.uri, needed.checksum, needed.etag
    FROM needed
    LEFT JOIN node_output AS named ON needed.checksum = named.content_hash
    LEFT JOIN reused
        ON needed.wal_id = reused.wal_id AND needed.uri = reused.uri
        AND needed.checksum = reused.checksum AND reused.nearness = 1
    LEFT JOIN first_made
        ON needed.uri = first_made.uri AND needed.checksum = first_made.checksum AND needed.wal_id > first_made.wal_id
    LEFT JOIN etl_wal AS made ON first_made.wal_id = made.wal_id
)

SELECT DISTINCT
    coalesce(source_hash, '') AS source_hash,
    @bytewise(CASE WHEN source_hash IS NULL THEN uri ELSE '' END) AS uri,
    @bytewise(CASE WHEN source_hash IS NULL THEN checksum ELSE '' END) AS checksum,
    @bytewise(CASE WHEN source_hash IS NULL THEN etag ELSE '' END) AS etag, content_hash
FROM resolved
ORDER BY 1, 2, 3, 4, 5;
