-- An alert for an object that is worse than what stands (OPR-20). SQLite cannot change a CHECK, so the tables are made again.

CREATE TABLE alerts_next (
    -- Never given again: who acknowledges a number acknowledges what was told under it.
    alert_id integer PRIMARY KEY AUTOINCREMENT,
    rule text NOT NULL,
    -- What it is about; with the rule it is the key under which no second alert is open.
    subject text NOT NULL,
    state text NOT NULL DEFAULT 'firing',
    level text NOT NULL,
    opened_at text NOT NULL,
    -- Since when it has this level: escalation counts from here.
    level_since text NOT NULL,
    -- The last evaluation that found it, and the events within the rule's window that this one counted.
    last_seen_at text NOT NULL,
    observed integer NOT NULL,
    -- The newest of these events: when, in which run, by which stage or source.
    last_event_at text NOT NULL,
    run_id text,
    place text NOT NULL,
    -- When it was last told, and how often.
    last_told_at text,
    tellings integer NOT NULL DEFAULT 0,
    -- The last acknowledgement; escalation makes it fire again all the same.
    acknowledged_at text,
    acknowledged_by text,
    acknowledged_why text,
    resolved_at text,
    CONSTRAINT alerts_rule_is_known CHECK (
        rule IN (
            'state_flapping', 'retry_storm', 'covariance', 'path_desync', 'unlock', 'gate_breach', 'replay_divergence',
            'worse_object'
        )
    ),
    CONSTRAINT alerts_subject_is_named CHECK (length(subject) BETWEEN 1 AND 300),
    CONSTRAINT alerts_place_is_named CHECK (length(place) BETWEEN 1 AND 300),
    CONSTRAINT alerts_state_is_known CHECK (state IN ('firing', 'acknowledged', 'resolved')),
    CONSTRAINT alerts_level_is_known CHECK (level IN ('info', 'warning', 'critical')),
    -- Nothing fires without an event.
    CONSTRAINT alerts_events_are_counted CHECK (observed >= 1),
    CONSTRAINT alerts_tellings_are_counted CHECK (tellings >= 0 AND (tellings = 0) = (last_told_at IS NULL)),
    CONSTRAINT alerts_acknowledgement_is_whole CHECK (
        (acknowledged_at IS NULL) = (acknowledged_by IS NULL) AND (acknowledged_at IS NULL) = (acknowledged_why IS NULL)
        AND (state <> 'acknowledged' OR acknowledged_at IS NOT NULL)
    ),
    CONSTRAINT alerts_resolution_has_a_time CHECK ((state = 'resolved') = (resolved_at IS NOT NULL))
) STRICT
-- ;
INSERT INTO alerts_next SELECT * FROM alerts
-- ;
-- What is to be sent and what was: a row per telling and endpoint, claimed before it is sent and closed once it is taken.
CREATE TABLE alert_tellings_next (
    alert_id integer NOT NULL,
    telling integer NOT NULL,
    -- Which URL of KFM_ALERT_URLS, counted from 1; the URL itself may hold credentials.
    endpoint integer NOT NULL,
    channel text NOT NULL,
    reason text NOT NULL,
    queued_at text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    -- Until then one evaluator is at it, and no other.
    claimed_until text,
    told_at text,
    last_error text,
    CONSTRAINT alert_tellings_once_per_endpoint PRIMARY KEY (alert_id, telling, endpoint),
    CONSTRAINT alert_tellings_alert_is_known FOREIGN KEY (alert_id) REFERENCES alerts_next (alert_id),
    CONSTRAINT alert_tellings_are_counted CHECK (telling >= 1 AND endpoint >= 1 AND attempts >= 0),
    CONSTRAINT alert_tellings_channel_is_named CHECK (length(channel) BETWEEN 1 AND 60),
    CONSTRAINT alert_tellings_reason_is_known CHECK (reason IN ('opened', 'repeated', 'escalated')),
    CONSTRAINT alert_tellings_error_is_bounded CHECK (length(last_error) <= 500),
    -- What was taken was tried, and is nobody's any more.
    CONSTRAINT alert_tellings_taken_are_closed CHECK (told_at IS NULL OR (attempts >= 1 AND claimed_until IS NULL))
) STRICT, WITHOUT ROWID
-- ;
INSERT INTO alert_tellings_next SELECT * FROM alert_tellings
-- ;
DROP TABLE alert_tellings
-- ;
DROP TABLE alerts
-- ;
ALTER TABLE alerts_next RENAME TO alerts
-- ;
ALTER TABLE alert_tellings_next RENAME TO alert_tellings
-- ;
-- Two evaluators at once open one alert.
CREATE UNIQUE INDEX alerts_one_open_per_key ON alerts (rule, subject) WHERE state <> 'resolved'
-- ;
CREATE INDEX alerts_by_key ON alerts (rule, subject, last_told_at)
-- ;
CREATE INDEX alert_tellings_due ON alert_tellings (queued_at) WHERE told_at IS NULL
-- ;
-- An alert begins to fire; it is resolved for good, its level only rises, and it is taken on by somebody or not at all.
CREATE TRIGGER alerts_begin_firing BEFORE INSERT ON alerts
WHEN NEW.state <> 'firing' OR NEW.tellings <> 0 OR NEW.acknowledged_at IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'alerts_begin_firing');
END
-- ;
CREATE TRIGGER alerts_move_is_legal BEFORE UPDATE ON alerts
WHEN
    (NEW.alert_id, NEW.rule, NEW.subject, NEW.opened_at) IS NOT (OLD.alert_id, OLD.rule, OLD.subject, OLD.opened_at)
    OR OLD.state = 'resolved'
    OR instr('info warning critical', NEW.level) < instr('info warning critical', OLD.level)
    OR NEW.tellings NOT IN (OLD.tellings, OLD.tellings + 1)
    -- Only what has become worse fires again after somebody took it on.
    OR (OLD.state = 'acknowledged' AND NEW.state = 'firing' AND NEW.level = OLD.level)
    OR (
        (NEW.acknowledged_at, NEW.acknowledged_by, NEW.acknowledged_why)
        IS NOT (OLD.acknowledged_at, OLD.acknowledged_by, OLD.acknowledged_why)
        AND NOT (OLD.state = 'firing' AND NEW.state = 'acknowledged')
    )
BEGIN
    SELECT RAISE(ABORT, 'alerts_move_is_legal');
END
-- ;
CREATE TRIGGER alerts_are_not_deleted BEFORE DELETE ON alerts
BEGIN
    SELECT RAISE(ABORT, 'alerts_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER alerts_are_not_replaced BEFORE INSERT ON alerts
WHEN EXISTS (SELECT 1 FROM alerts AS r WHERE r.alert_id = NEW.alert_id)
BEGIN
    SELECT RAISE(ABORT, 'alerts_are_kept');
END
-- ;
CREATE TRIGGER alert_tellings_begin_untold BEFORE INSERT ON alert_tellings
WHEN
    NEW.told_at IS NOT NULL OR NEW.attempts <> 0
    OR EXISTS (
        SELECT 1 FROM alert_tellings AS r
        WHERE r.alert_id = NEW.alert_id AND r.telling = NEW.telling AND r.endpoint = NEW.endpoint
    )
BEGIN
    SELECT RAISE(ABORT, 'alert_tellings_begin_untold');
END
-- ;
CREATE TRIGGER alert_tellings_are_told_once BEFORE UPDATE ON alert_tellings
WHEN
    (NEW.alert_id, NEW.telling, NEW.endpoint, NEW.channel, NEW.reason, NEW.queued_at)
    IS NOT (OLD.alert_id, OLD.telling, OLD.endpoint, OLD.channel, OLD.reason, OLD.queued_at)
    OR OLD.told_at IS NOT NULL OR NEW.attempts < OLD.attempts
BEGIN
    SELECT RAISE(ABORT, 'alert_tellings_are_told_once');
END
-- ;
CREATE TRIGGER alert_tellings_are_not_deleted BEFORE DELETE ON alert_tellings
BEGIN
    SELECT RAISE(ABORT, 'alert_tellings_are_kept');
END
-- ;
-- An evaluation looks every half minute: at what was quarantined of late, not at all that ever was.
CREATE INDEX nodd_wal_records_quarantined ON nodd_wal_records (updated_at) WHERE status = 'quarantined'
