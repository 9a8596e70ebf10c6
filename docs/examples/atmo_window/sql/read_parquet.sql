-- Observations of one Parquet file.
INSERT INTO delivered
SELECT station, CAST(observed_at AS timestamptz), revision, temperature_c, pressure_hpa, wind_ms
FROM read_parquet($file)
