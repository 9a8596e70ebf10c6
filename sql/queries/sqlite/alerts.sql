-- Statements of the alerts for SQLite: rules, findings and endpoints are JSON parameters, read by json_each.

-- name: lock
-- BEGIN IMMEDIATE has locked the database.
SELECT 1;

-- name: findings
-- What each rule has found within its window: a row per subject with at least so many events, and the newest of them.
WITH terms AS (
    SELECT value ->> 'rule' AS rule, value ->> 'since' AS since, value ->> 'threshold' AS threshold
    FROM json_each(:terms)
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
    -- What had succeeded and is asked again is no retry of a failure.
    SELECT 'retry_storm', 'all stages', at, run_id, stage
    FROM stage_audit
    WHERE
        kind = 'retry' AND at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'retry_storm')
        AND details ->> 'after' IN ('failed', 'rolled_back', 'pending')
    UNION ALL
    SELECT
        CASE event WHEN 'G3' THEN 'path_desync' WHEN 'G7' THEN 'covariance' ELSE 'gate_breach' END,
        stage || ' ' || event, at, run_id, stage
    -- Of two indexes the planner takes the one with every gate.
    FROM stage_audit INDEXED BY stage_audit_failed_gates
    WHERE
        kind = 'gate' AND details ->> 'outcome' <> 'passed'
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
    SELECT 'unlock', 'clock', at, run_id, stage
    FROM stage_audit
    WHERE kind = 'stop' AND event = 'E_SYNC' AND at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'unlock')
    UNION ALL
    SELECT 'unlock', 'clock', opened_at, run_id, stage
    FROM stage_state
    WHERE
        opened_at >= (SELECT t.since FROM terms AS t WHERE t.rule = 'unlock')
        AND EXISTS (SELECT 1 FROM json_each(restricted) WHERE value = 'E_SYNC')
    UNION ALL
    -- A reading that proves the clock wrong, and a kernel that does not keep it while nothing else calibrates it.
    SELECT 'unlock', 'clock', r.at, NULL, r.source
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
                        c.clock_id = r.clock_id AND c.at >= :calibrated_since
                        AND abs(c.offset_seconds) + c.uncertainty_seconds <= :max_offset
                )
            )
        )
    UNION ALL
    -- Objects that were taken out while another version of the same one has its Item; the newest version counts.
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
),
counted AS (
    SELECT
        e.rule, e.subject, e.at, e.run_id, e.place, t.threshold,
        count(*) OVER (PARTITION BY e.rule, e.subject) AS observed,
        row_number() OVER (PARTITION BY e.rule, e.subject ORDER BY e.at DESC, e.run_id DESC, e.place DESC) AS newest
    FROM events AS e INNER JOIN terms AS t ON e.rule = t.rule
    WHERE e.at >= t.since AND e.at <= :now
)
SELECT rule, subject, observed, at AS last_event_at, run_id, place
FROM counted
WHERE newest = 1 AND observed >= threshold
ORDER BY rule, subject;

-- name: see
UPDATE alerts SET
    last_seen_at = :now, observed = f.observed, last_event_at = f.last_event_at, run_id = f.run_id, place = f.place
FROM (
    SELECT
        value ->> 'rule' AS rule, value ->> 'subject' AS subject, value ->> 'observed' AS observed,
        value ->> 'last_event_at' AS last_event_at, value ->> 'run_id' AS run_id, value ->> 'place' AS place
    FROM json_each(:findings)
) AS f
WHERE
    alerts.rule = f.rule AND alerts.subject = f.subject AND alerts.state <> 'resolved' AND alerts.last_seen_at <= :now;

-- name: resolve
UPDATE alerts SET state = 'resolved', resolved_at = :now
WHERE
    state <> 'resolved' AND last_seen_at <= :now
    AND NOT EXISTS (
        SELECT 1 FROM json_each(:findings) AS f
        WHERE f.value ->> 'rule' = alerts.rule AND f.value ->> 'subject' = alerts.subject
    )
RETURNING alert_id;

-- name: open
INSERT INTO alerts (
    rule, subject, level, opened_at, level_since, last_seen_at, observed, last_event_at, run_id, place
)
SELECT
    f.value ->> 'rule', f.value ->> 'subject', f.value ->> 'level', :now, :now, :now, f.value ->> 'observed',
    f.value ->> 'last_event_at', f.value ->> 'run_id', f.value ->> 'place'
FROM json_each(:findings) AS f
WHERE
    NOT EXISTS (
        SELECT 1 FROM alerts AS a
        WHERE a.rule = f.value ->> 'rule' AND a.subject = f.value ->> 'subject' AND a.state <> 'resolved'
    )
ORDER BY f.value ->> 'rule', f.value ->> 'subject'
RETURNING alert_id;

-- name: escalate
UPDATE alerts SET
    level = CASE alerts.level WHEN 'info' THEN 'warning' ELSE 'critical' END, level_since = :now, state = 'firing'
FROM (SELECT value ->> 'rule' AS rule, value ->> 'escalate_before' AS escalate_before FROM json_each(:terms)) AS t
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
-- Not again within the window of suppression, whichever alert of the same rule and subject was told; what has gone up a
-- level is told at once. An evaluation tells an alert once.
UPDATE alerts SET tellings = alerts.tellings + 1, last_told_at = :now
FROM (
    SELECT value ->> 'rule' AS rule, value ->> 'quiet_since' AS quiet_since, value -> 'audience' AS audience
    FROM json_each(:terms)
) AS t
WHERE
    alerts.rule = t.rule AND alerts.state = 'firing'
    AND EXISTS (SELECT 1 FROM json_each(t.audience) AS heard WHERE heard.value = alerts.level)
    AND (alerts.last_told_at IS NULL OR alerts.last_told_at < :now)
    AND (
        (alerts.level_since = :now AND alerts.opened_at <> :now)
        OR NOT EXISTS (
            SELECT 1 FROM alerts AS told
            WHERE told.rule = alerts.rule AND told.subject = alerts.subject AND told.last_told_at > t.quiet_since
        )
    )
RETURNING alert_id, rule, level, tellings;

-- name: queue
-- What an endpoint has not taken yet will tell of the alert as it is then: a second message would say the same.
INSERT INTO alert_tellings (alert_id, telling, endpoint, channel, reason, queued_at)
SELECT
    n.value ->> 'alert_id', n.value ->> 'telling', n.value ->> 'endpoint', n.value ->> 'channel', n.value ->> 'reason',
    :now
FROM json_each(:batch) AS n
WHERE
    NOT EXISTS (
        SELECT 1 FROM alert_tellings AS w
        WHERE
            w.alert_id = n.value ->> 'alert_id' AND w.endpoint = n.value ->> 'endpoint'
            AND w.channel = n.value ->> 'channel' AND w.told_at IS NULL
    );

-- name: due
-- An endpoint is a place in a list that may change: what waits goes where its channel leads, or nowhere.
SELECT 1 FROM alert_tellings
WHERE
    told_at IS NULL AND (claimed_until IS NULL OR claimed_until <= :now)
    AND (endpoint, channel) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:leads))
LIMIT 1;

-- name: claim
UPDATE alert_tellings SET claimed_until = :until, attempts = attempts + 1
WHERE
    (alert_id, telling, endpoint) IN (
        SELECT w.alert_id, w.telling, w.endpoint
        FROM alert_tellings AS w
        WHERE
            w.told_at IS NULL AND (w.claimed_until IS NULL OR w.claimed_until <= :now)
            AND (w.endpoint, w.channel) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:leads))
        ORDER BY w.queued_at, w.alert_id, w.endpoint
        LIMIT 1
    )
RETURNING alert_id, telling, endpoint, channel, reason, attempts;
