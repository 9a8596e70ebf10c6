-- Everything that was delivered, as it came: late, corrected and repeated rows among it.
CREATE TABLE delivered (
    station varchar NOT NULL,
    observed_at timestamptz NOT NULL,
    -- 0 for a first report, more for each correction of it.
    revision integer NOT NULL,
    temperature_c decimal(7, 2),
    pressure_hpa decimal(7, 2),
    wind_ms decimal(7, 2)
)
