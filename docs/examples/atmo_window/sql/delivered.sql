-- All delivered rows, as they came, including late, corrected and repeated rows.
CREATE TABLE delivered (
    station varchar NOT NULL,
    observed_at timestamptz NOT NULL,
    -- 0 for a first report, a higher number for each correction of the report.
    revision integer NOT NULL,
    temperature_c decimal(7, 2),
    pressure_hpa decimal(7, 2),
    wind_ms decimal(7, 2)
)
