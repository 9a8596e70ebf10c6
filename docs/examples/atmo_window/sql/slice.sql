-- The observations of one window, each in its newest revision, under the name and place that may be shown. For a masked
-- group, the result does not show which of the group's stations made an observation.
WITH newest AS (
    SELECT DISTINCT d.*
    FROM delivered AS d
    WHERE d.observed_at >= CAST($start AS timestamptz) AND d.observed_at < CAST($end AS timestamptz)
    QUALIFY d.revision = max(d.revision) OVER (PARTITION BY d.station, d.observed_at)
)

SELECT
    s.place,
    s.latitude,
    s.longitude,
    strftime(n.observed_at, '%Y-%m-%dT%H:%M:%SZ') AS observed_at,
    n.temperature_c,
    n.pressure_hpa,
    n.wind_ms
FROM newest AS n
INNER JOIN sites AS s ON n.station = s.station
ORDER BY s.place, n.observed_at, n.temperature_c, n.pressure_hpa, n.wind_ms
