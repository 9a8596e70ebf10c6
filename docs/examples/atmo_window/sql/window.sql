-- One row per place: count, mean, minimum and maximum of the physically possible values, and the number of other values.
-- Sums of decimals are exact, so that the order of addition changes no mean; ORDER BY fixes the order of rows.
WITH judged AS (
    SELECT
        o.place,
        o.latitude,
        o.longitude,
        -- Bounds beyond the Earth's records: -89.2 and 56.7 C, 1,084 hPa, wind of 113 m/s (WMO archive of extremes).
        -- The lowest pressure at sea level is 870 hPa; high stations have less.
        CASE WHEN o.temperature_c BETWEEN -90 AND 60 THEN o.temperature_c END AS temperature_c,
        CASE WHEN o.pressure_hpa BETWEEN 500 AND 1090 THEN o.pressure_hpa END AS pressure_hpa,
        CASE WHEN o.wind_ms BETWEEN 0 AND 115 THEN o.wind_ms END AS wind_ms,
        NOT coalesce(o.temperature_c BETWEEN -90 AND 60, true)
        OR NOT coalesce(o.pressure_hpa BETWEEN 500 AND 1090, true)
        OR NOT coalesce(o.wind_ms BETWEEN 0 AND 115, true) AS is_suspect
    FROM observations AS o
)

SELECT
    j.place,
    j.latitude,
    j.longitude,
    count(*) AS observations,
    count(*) FILTER (WHERE j.is_suspect) AS suspect,
    round(sum(j.temperature_c) / count(j.temperature_c), 3) AS temperature_c_mean,
    min(j.temperature_c) AS temperature_c_min,
    max(j.temperature_c) AS temperature_c_max,
    round(sum(j.pressure_hpa) / count(j.pressure_hpa), 3) AS pressure_hpa_mean,
    min(j.pressure_hpa) AS pressure_hpa_min,
    max(j.pressure_hpa) AS pressure_hpa_max,
    round(sum(j.wind_ms) / count(j.wind_ms), 3) AS wind_ms_mean,
    min(j.wind_ms) AS wind_ms_min,
    max(j.wind_ms) AS wind_ms_max
FROM judged AS j
GROUP BY j.place, j.latitude, j.longitude
ORDER BY j.place, j.latitude, j.longitude
