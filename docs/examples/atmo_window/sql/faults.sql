-- Rows that no rule can decide: of an undeclared station, or two different reports of one station, time and revision.
WITH within AS (
    SELECT DISTINCT d.*
    FROM delivered AS d
    WHERE d.observed_at >= CAST($start AS timestamptz) AND d.observed_at < CAST($end AS timestamptz)
),

contradicting AS (
    SELECT w.station, w.observed_at, w.revision
    FROM within AS w
    GROUP BY w.station, w.observed_at, w.revision
    HAVING count(*) > 1
)

SELECT
    (SELECT count(*) FROM within AS w WHERE w.station NOT IN (SELECT s.station FROM sites AS s)) AS undeclared,
    (SELECT count(*) FROM contradicting) AS contradicting
