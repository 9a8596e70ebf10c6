-- Queries over the rows of the catalog's GeoParquet.

-- name: matching
-- places(place, west, south, east, north, starts, ends): a row per Item. Bounds of an Item without a box are NaN, which
-- DuckDB treats as greater than any number.
-- asked(west, south, east, north, starts, ends): one row; null bounds are not compared. Times are microseconds.
-- A box whose west is greater than its east crosses the antimeridian, so any two such boxes intersect there.
SELECT places.place
FROM places CROSS JOIN asked
WHERE
    (asked.starts IS NULL OR places.ends >= asked.starts)
    AND (asked.ends IS NULL OR places.starts <= asked.ends)
    AND (
        asked.west IS NULL
        OR (
            NOT isnan(places.west)
            AND places.south <= asked.north AND places.north >= asked.south
            AND CASE
                WHEN places.west > places.east AND asked.west > asked.east THEN true
                WHEN places.west > places.east OR asked.west > asked.east
                    THEN places.west <= asked.east OR places.east >= asked.west
                ELSE places.west <= asked.east AND places.east >= asked.west
            END
        )
    )
ORDER BY places.place;
