-- Observations of one CSV file. The types are named, because guessed types would depend on the file's rows.
INSERT INTO delivered
SELECT station, CAST(observed_at AS timestamptz), revision, temperature_c, pressure_hpa, wind_ms
FROM read_csv(
    $file,
    header = true,
    auto_detect = false,
    columns = {
        'station': 'VARCHAR', 'observed_at': 'VARCHAR', 'revision': 'INTEGER',
        'temperature_c': 'DECIMAL(7,2)', 'pressure_hpa': 'DECIMAL(7,2)', 'wind_ms': 'DECIMAL(7,2)'
    }
)
