-- Statements of the alerts.

-- name: any_open
SELECT 1 FROM alerts WHERE state <> 'resolved' LIMIT 1;

-- name: listed
SELECT
    alert_id, rule, subject, state, level, opened_at, level_since, last_seen_at, observed, last_event_at, run_id, place,
    last_notified_at, notifications, acknowledged_at, acknowledged_by, acknowledged_why, resolved_at,
    (
        SELECT count(*) FROM outbox AS w WHERE w.topic = 'alerts' AND w.subject = CAST(alerts.alert_id AS text)
    ) AS undelivered,
    rule || '/' || subject AS key
FROM alerts
WHERE
    -- If resolved_since is null, no resolved alert is listed.
    (state <> 'resolved' OR resolved_at >= :resolved_since)
    AND (:rule IS NULL OR rule = :rule) AND alert_id > :after
ORDER BY alert_id
LIMIT :limit;

-- name: get
SELECT
    alert_id, rule, subject, state, level, opened_at, level_since, last_seen_at, observed, last_event_at, run_id, place,
    last_notified_at, notifications, acknowledged_at, acknowledged_by, acknowledged_why, resolved_at,
    (
        SELECT count(*) FROM outbox AS w WHERE w.topic = 'alerts' AND w.subject = CAST(alerts.alert_id AS text)
    ) AS undelivered,
    rule || '/' || subject AS key
FROM alerts
WHERE alert_id = :alert_id;

-- name: acknowledge
UPDATE alerts SET
    state = 'acknowledged', acknowledged_at = :at, acknowledged_by = :actor, acknowledged_why = :reason
WHERE alert_id = :alert_id AND state = 'firing';

-- name: findings
-- Findings of each rule within its window: a row per subject whose events reach the threshold, with the newest event.
WITH terms AS (
    SELECT rule, since, threshold
    FROM @batch(:terms, t, rule text, since time, threshold integer)
),
tries AS (
    SELECT
        stage, run_id, opened_at, started_at,
        lag(state) OVER (PARTITION BY stage ORDER BY opened_at, run_id, attempt) AS previous
    FROM stage_state
    WHERE opened_at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'state_flapping')
),
events AS (
    SELECT 'state_flapping' AS rule, stage AS subject, opened_at AS at, run_id, stage AS place
    FROM tries
    WHERE previous IN ('failed', 'rolled_back') AND started_at IS NOT NULL
    UNION ALL
    -- A repetition after a success is not a retry of a failure.
    SELECT 'retry_storm', 'all stages', at, run_id, stage
    FROM stage_audit
    WHERE
        kind = 'retry' AND at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'retry_storm')
        AND @as_json(details) ->> 'after' IN ('failed', 'rolled_back', 'pending')
    UNION ALL
    SELECT
        CASE event WHEN 'G3' THEN 'path_desync' WHEN 'G7' THEN 'covariance' ELSE 'gate_breach' END,
        stage || ' ' || event, at, run_id, stage
    FROM stage_audit @indexed_by(stage_audit_failed_gates)
    WHERE
        kind = 'gate' AND @as_json(details) ->> 'outcome' <> 'passed'
        AND at >= (
            SELECT min(t.since) FROM terms AS t WHERE t.rule IN ('covariance', 'path_desync', 'gate_breach')
        )
    UNION ALL
    SELECT 'replay_divergence', 'run ' || run_id, at, run_id, stage
    FROM stage_audit
    WHERE
        kind = 'replay' AND event = 'diverged'
        AND at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'replay_divergence')
    UNION ALL
    -- Also units whose repeated ingest gave another result without approval.
    SELECT 'replay_divergence', record.dataset, made.at, made.replay_run_id, record.dataset
    FROM nodd_wal_outcomes AS made
    INNER JOIN nodd_wal_records AS record ON made.wal_id = record.wal_id
    WHERE
        made.permitted IS NOT NULL AND NOT made.permitted
        AND made.at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'replay_divergence')
    UNION ALL
    SELECT 'unlock', 'clock', at, run_id, stage
    FROM stage_audit
    WHERE kind = 'stop' AND event = 'E_SYNC' AND at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'unlock')
    UNION ALL
    SELECT 'unlock', 'clock', opened_at, run_id, stage
    FROM stage_state
    WHERE
        opened_at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'unlock')
        AND @has(restricted, 'E_SYNC')
    UNION ALL
    -- A reading that proves a wrong clock, or an unlocked kernel while no other source calibrates the clock.
    SELECT 'unlock', 'clock', r.at, CAST(NULL AS text), r.source
    FROM clock_readings AS r
    WHERE
        r.at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'unlock')
        AND (
            abs(r.offset_seconds) - r.uncertainty_seconds > :max_offset
            OR (
                r.state = 'unlocked'
                AND NOT EXISTS (
                    SELECT 1 FROM clock_readings AS c
                    WHERE
                        c.clock_id = r.clock_id AND c.at >= @as_time(:calibrated_since)
                        AND abs(c.offset_seconds) + c.uncertainty_seconds <= :max_offset
                )
            )
        )
    UNION ALL
    -- Objects whose newest version is quarantined while another version has succeeded.
    SELECT 'worse_object', worse.dataset, worse.updated_at, worse.ingest_run_id, worse.last_error_code
    FROM nodd_wal_records AS worse
    WHERE
        worse.status = 'quarantined'
        AND worse.updated_at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'worse_object')
        AND worse.last_error_code NOT IN ('superseded', 'stale_event')
        AND NOT EXISTS (SELECT 1 FROM nodd_wal_supersessions AS link WHERE link.older_wal_id = worse.wal_id)
        AND EXISTS (
            SELECT 1 FROM nodd_wal_records AS good
            WHERE
                good.object_uri = worse.object_uri AND good.dataset = worse.dataset
                AND good.time_range_start = worse.time_range_start AND good.status || '' = 'succeeded'
        )
    UNION ALL
    -- A silence lasts until an object is announced, so its event has the time of the evaluation.
    SELECT 'silent_feed', dataset, @as_time(:now), CAST(NULL AS text), product
    FROM nodd_gaps
    WHERE kind = 'silence' AND closed_at IS NULL
),
counted AS (
    SELECT
        e.rule, e.subject, e.at, e.run_id, e.place, t.threshold,
        count(*) OVER (PARTITION BY e.rule, e.subject) AS observed,
        row_number() OVER (PARTITION BY e.rule, e.subject ORDER BY e.at DESC, e.run_id DESC, e.place DESC) AS newest
    FROM events AS e INNER JOIN terms AS t ON e.rule = t.rule
    WHERE e.at >= t.since AND e.at <= @as_time(:now)
)
SELECT rule, subject, observed, at AS last_event_at, run_id, place
FROM counted
WHERE newest = 1 AND observed >= threshold
ORDER BY rule, subject;

-- name: see
UPDATE alerts SET
    last_seen_at = :now, observed = f.observed, last_event_at = f.last_event_at, run_id = f.run_id, place = f.place
FROM @batch(:findings, f,
    rule text, subject text, level text, observed integer, last_event_at time, run_id text, place text
)
WHERE
    alerts.rule = f.rule AND alerts.subject = f.subject AND alerts.state <> 'resolved' AND alerts.last_seen_at <= :now;

-- name: resolve
UPDATE alerts SET state = 'resolved', resolved_at = :now
WHERE
    state <> 'resolved' AND last_seen_at <= :now
    AND NOT EXISTS (
        SELECT 1 FROM @batch(:findings, f, rule text, subject text)
        WHERE f.rule = alerts.rule AND f.subject = alerts.subject
    );

-- name: open
INSERT INTO alerts (
    rule, subject, level, opened_at, level_since, last_seen_at, observed, last_event_at, run_id, place
)
SELECT
    f.rule, f.subject, f.level, @as_time(:now), @as_time(:now), @as_time(:now),
    f.observed, f.last_event_at, f.run_id, f.place
FROM @batch(:findings, f,
    rule text, subject text, level text, observed integer, last_event_at time, run_id text, place text
)
WHERE
    NOT EXISTS (
        SELECT 1 FROM alerts AS a WHERE a.rule = f.rule AND a.subject = f.subject AND a.state <> 'resolved'
    )
ORDER BY f.rule, f.subject;

-- name: escalate
UPDATE alerts SET
    level = CASE alerts.level WHEN 'info' THEN 'warning' ELSE 'critical' END, level_since = :now, state = 'firing'
FROM @batch(:terms, t, rule text, escalate_before time)
WHERE
    alerts.rule = t.rule AND alerts.level <> 'critical' AND alerts.level_since <= t.escalate_before
    AND (
        alerts.state = 'firing'
        OR (
            alerts.state = 'acknowledged' AND alerts.acknowledged_at <= t.escalate_before
            AND alerts.last_event_at > t.escalate_before
        )
    )
RETURNING alert_id;

-- name: tell
-- An alert is not notified within `suppress` after the last notification of an alert of the same rule and subject,
-- unless it has just escalated. An evaluation notifies an alert once.
UPDATE alerts SET notifications = alerts.notifications + 1, last_notified_at = :now
FROM @batch(:terms, t, rule text, quiet_since time, audience json)
WHERE
    alerts.rule = t.rule AND alerts.state = 'firing' AND @has(t.audience, alerts.level)
    AND (alerts.last_notified_at IS NULL OR alerts.last_notified_at < :now)
    AND (
        (alerts.level_since = :now AND alerts.opened_at <> :now)
        OR NOT EXISTS (
            SELECT 1 FROM alerts AS earlier
            WHERE earlier.rule = alerts.rule AND earlier.subject = alerts.subject AND earlier.last_notified_at > t.quiet_since
        )
    )
RETURNING @returned(alerts.alert_id, alerts.rule, alerts.level, alerts.notifications);
