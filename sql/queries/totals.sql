-- Totals for metrics (kfm_dagster/telemetry/totals.py).

-- name: add
-- sqlite: it has one writer, so counts are added to a single row.
INSERT INTO metric_totals (metric, subject, label, amount)
SELECT metric, subject, label, amount
FROM @batch(:batch, part, metric text, subject text, label text, amount real)
WHERE TRUE
ON CONFLICT (metric, subject, label) DO UPDATE SET amount = metric_totals.amount + excluded.amount;

-- name: add
-- postgresql: writers to the same row would wait for each other; a trigger adds the rows up.
INSERT INTO metric_totals (metric, subject, label, amount)
SELECT metric, subject, label, amount
FROM @batch(:batch, part, metric text, subject text, label text, amount real);

-- name: read
SELECT metric, subject, label, sum(amount) AS amount
FROM metric_totals
GROUP BY metric, subject, label
ORDER BY metric, subject, label;
