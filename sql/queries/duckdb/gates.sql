-- Queries of the gates over Arrow tables that a gate registers; one row for every unit at fault and broken rule.

-- name: collisions
-- units(wal_id, object_uri, object_version, item_id): item_id is null if the unit's Item is not current.
-- owners(item_id, wal_id, object_uri, object_version): units of the current Items, and of the versions they replaced.
WITH
versions AS (
    SELECT object_uri, object_version, count(DISTINCT wal_id) AS times, min(wal_id) AS first, max(wal_id) AS last
    FROM units
    WHERE object_version IS NOT NULL
    GROUP BY object_uri, object_version
    HAVING min(wal_id) <> max(wal_id)
),
items AS (
    SELECT item_id, count(DISTINCT wal_id) AS times, min(wal_id) AS first, max(wal_id) AS last
    FROM units
    WHERE item_id IS NOT NULL
    GROUP BY item_id
    HAVING min(wal_id) <> max(wal_id)
)
SELECT 'wal_id' AS rule, wal_id, wal_id AS other, count(*) AS times
FROM units
GROUP BY wal_id
HAVING count(*) > 1
UNION
SELECT
    'object_version', units.wal_id,
    CASE WHEN units.wal_id = versions.first THEN versions.last ELSE versions.first END, versions.times
FROM units
INNER JOIN versions ON units.object_uri = versions.object_uri AND units.object_version = versions.object_version
UNION
SELECT
    'item_id', units.wal_id, CASE WHEN units.wal_id = items.first THEN items.last ELSE items.first END, items.times
FROM units
INNER JOIN items ON units.item_id = items.item_id
UNION
SELECT 'catalog_version', units.wal_id, owners.wal_id, 1
FROM units
INNER JOIN owners ON units.object_uri = owners.object_uri AND units.object_version = owners.object_version
WHERE units.wal_id <> owners.wal_id
UNION
SELECT 'catalog_item', units.wal_id, owners.object_uri, 1
FROM units
INNER JOIN owners ON units.item_id = owners.item_id
WHERE units.wal_id <> owners.wal_id AND units.object_uri <> owners.object_uri;
