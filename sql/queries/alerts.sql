-- Statements of the alerts that are the same in both databases.

-- name: any_open
SELECT 1 FROM alerts WHERE state <> 'resolved' LIMIT 1;

-- name: listed
SELECT
    alert_id, rule, subject, state, level, opened_at, level_since, last_seen_at, observed, last_event_at, run_id, place,
    last_told_at, tellings, acknowledged_at, acknowledged_by, acknowledged_why, resolved_at,
    (
        SELECT count(*) FROM alert_tellings AS t WHERE t.alert_id = alerts.alert_id AND t.told_at IS NULL
    ) AS undelivered
FROM alerts
-- Since null nothing has resolved.
WHERE state <> 'resolved' OR resolved_at >= :resolved_since
ORDER BY alert_id;

-- name: get
SELECT
    alert_id, rule, subject, state, level, opened_at, level_since, last_seen_at, observed, last_event_at, run_id, place,
    last_told_at, tellings, acknowledged_at, acknowledged_by, acknowledged_why, resolved_at,
    (
        SELECT count(*) FROM alert_tellings AS t WHERE t.alert_id = alerts.alert_id AND t.told_at IS NULL
    ) AS undelivered
FROM alerts
WHERE alert_id = :alert_id;

-- name: acknowledge
UPDATE alerts SET
    state = 'acknowledged', acknowledged_at = :at, acknowledged_by = :actor, acknowledged_why = :reason
WHERE alert_id = :alert_id AND state = 'firing';

-- name: taken
UPDATE alert_tellings SET told_at = :at, claimed_until = NULL, last_error = NULL
WHERE alert_id = :alert_id AND telling = :telling AND endpoint = :endpoint AND told_at IS NULL;

-- name: put_back
UPDATE alert_tellings SET claimed_until = :until, last_error = :error
WHERE alert_id = :alert_id AND telling = :telling AND endpoint = :endpoint AND told_at IS NULL;
