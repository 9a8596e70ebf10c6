-- Alerts over the stages: what fires since when, who was told of it and where, who took it on (PCS-18).
CREATE TABLE alerts (
    -- Never given again: who acknowledges a number acknowledges what was told under it.
    alert_id bigint GENERATED ALWAYS AS IDENTITY,
    rule text NOT NULL,
    -- What it is about; with the rule it is the key under which no second alert is open.
    subject text NOT NULL,
    state text NOT NULL DEFAULT 'firing',
    level text NOT NULL,
    opened_at timestamptz NOT NULL,
    -- Since when it has this level: escalation counts from here.
    level_since timestamptz NOT NULL,
    -- The last evaluation that found it, and the events within the rule's window that this one counted.
    last_seen_at timestamptz NOT NULL,
    observed integer NOT NULL,
    -- The newest of these events: when, in which run, by which stage or source.
    last_event_at timestamptz NOT NULL,
    run_id text,
    place text NOT NULL,
    -- When it was last told, and how often.
    last_told_at timestamptz,
    tellings integer NOT NULL DEFAULT 0,
    -- The last acknowledgement; escalation makes it fire again all the same.
    acknowledged_at timestamptz,
    acknowledged_by text,
    acknowledged_why text,
    resolved_at timestamptz,
    CONSTRAINT alerts_one_row_per_alert PRIMARY KEY (alert_id),
    CONSTRAINT alerts_rule_is_known CHECK (
        rule IN (
            'state_flapping', 'retry_storm', 'covariance', 'path_desync', 'unlock', 'gate_breach', 'replay_divergence'
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
)
-- ;
-- Two evaluators at once open one alert.
CREATE UNIQUE INDEX alerts_one_open_per_key ON alerts (rule, subject) WHERE state <> 'resolved'
-- ;
CREATE INDEX alerts_by_key ON alerts (rule, subject, last_told_at)
-- ;
-- What is to be sent and what was: a row per telling and endpoint, claimed before it is sent and closed once it is taken.
CREATE TABLE alert_tellings (
    alert_id bigint NOT NULL,
    telling integer NOT NULL,
    -- Which URL of KFM_ALERT_URLS, counted from 1; the URL itself may hold credentials.
    endpoint integer NOT NULL,
    channel text NOT NULL,
    reason text NOT NULL,
    queued_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    -- Until then one evaluator is at it, and no other.
    claimed_until timestamptz,
    told_at timestamptz,
    last_error text,
    CONSTRAINT alert_tellings_once_per_endpoint PRIMARY KEY (alert_id, telling, endpoint),
    CONSTRAINT alert_tellings_alert_is_known FOREIGN KEY (alert_id) REFERENCES alerts (alert_id),
    CONSTRAINT alert_tellings_are_counted CHECK (telling >= 1 AND endpoint >= 1 AND attempts >= 0),
    CONSTRAINT alert_tellings_channel_is_named CHECK (length(channel) BETWEEN 1 AND 60),
    CONSTRAINT alert_tellings_reason_is_known CHECK (reason IN ('opened', 'repeated', 'escalated')),
    CONSTRAINT alert_tellings_error_is_bounded CHECK (length(last_error) <= 500),
    -- What was taken was tried, and is nobody's any more.
    CONSTRAINT alert_tellings_taken_are_closed CHECK (told_at IS NULL OR (attempts >= 1 AND claimed_until IS NULL))
)
-- ;
CREATE INDEX alert_tellings_due ON alert_tellings (queued_at) WHERE told_at IS NULL
-- ;
-- An alert begins to fire; it is resolved for good, its level only rises, and it is taken on by somebody or not at all.
CREATE FUNCTION alerts_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'firing' OR NEW.tellings <> 0 OR NEW.acknowledged_at IS NOT NULL THEN
            RAISE EXCEPTION 'alerts_begin_firing' USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.alert_id, NEW.rule, NEW.subject, NEW.opened_at)
        IS DISTINCT FROM (OLD.alert_id, OLD.rule, OLD.subject, OLD.opened_at)
        OR OLD.state = 'resolved'
        OR strpos('info warning critical', NEW.level) < strpos('info warning critical', OLD.level)
        OR NEW.tellings NOT IN (OLD.tellings, OLD.tellings + 1)
        -- Only what has become worse fires again after somebody took it on.
        OR (OLD.state = 'acknowledged' AND NEW.state = 'firing' AND NEW.level = OLD.level)
        OR (
            (NEW.acknowledged_at, NEW.acknowledged_by, NEW.acknowledged_why)
            IS DISTINCT FROM (OLD.acknowledged_at, OLD.acknowledged_by, OLD.acknowledged_why)
            AND NOT (OLD.state = 'firing' AND NEW.state = 'acknowledged')
        )
    THEN
        RAISE EXCEPTION 'alerts_move_is_legal' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER alerts_are_guarded BEFORE INSERT OR UPDATE ON alerts
FOR EACH ROW EXECUTE FUNCTION alerts_guard()
-- ;
CREATE TRIGGER alerts_are_not_deleted BEFORE DELETE OR TRUNCATE ON alerts
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('alerts_are_kept')
-- ;
CREATE FUNCTION alert_tellings_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.told_at IS NOT NULL OR NEW.attempts <> 0 THEN
            RAISE EXCEPTION 'alert_tellings_begin_untold' USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.alert_id, NEW.telling, NEW.endpoint, NEW.channel, NEW.reason, NEW.queued_at)
        IS DISTINCT FROM (OLD.alert_id, OLD.telling, OLD.endpoint, OLD.channel, OLD.reason, OLD.queued_at)
        OR OLD.told_at IS NOT NULL OR NEW.attempts < OLD.attempts
    THEN
        RAISE EXCEPTION 'alert_tellings_are_told_once' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER alert_tellings_are_guarded BEFORE INSERT OR UPDATE ON alert_tellings
FOR EACH ROW EXECUTE FUNCTION alert_tellings_guard()
-- ;
CREATE TRIGGER alert_tellings_are_not_deleted BEFORE DELETE OR TRUNCATE ON alert_tellings
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('alert_tellings_are_kept')
-- ;
-- An evaluation looks every half minute, and must find what is wrong without reading all that is right.
CREATE INDEX stage_audit_failed_gates ON stage_audit (at)
WHERE kind = 'gate' AND (details::jsonb ->> 'outcome') <> 'passed'
-- ;
CREATE INDEX stage_audit_by_kind ON stage_audit (kind, at)
