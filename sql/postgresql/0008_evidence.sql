-- Quarantine cases: what a person needs to judge a quarantined unit, and how the case ended (BEY-06).

-- One case per quarantine: a unit that is released and comes back has another one.
CREATE TABLE quarantine_cases (
    wal_id text COLLATE "C" NOT NULL,
    -- The version that the quarantine gave the record.
    quarantined_version integer NOT NULL,
    opened_at timestamptz NOT NULL,
    reason text NOT NULL,
    -- The evidence bundle, relative to the storage URL; null until it is collected.
    evidence_uri text,
    evidence_sha256 text,
    collected_at timestamptz,
    state text NOT NULL,
    closed_at timestamptz,
    -- Who closed it, why and under which change.
    closing_entry bigint,
    CONSTRAINT quarantine_cases_one_row_per_quarantine PRIMARY KEY (wal_id, quarantined_version),
    -- A case of nothing could be closed for something. Deferred: the history is written after the case.
    CONSTRAINT quarantine_cases_quarantine_happened
    FOREIGN KEY (wal_id, quarantined_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    -- A case that nobody answers for would be closed by nobody.
    CONSTRAINT quarantine_cases_closing_entry_is_known FOREIGN KEY (closing_entry) REFERENCES governance_log (entry_id),
    -- A state that nobody knows would be on no list.
    CONSTRAINT quarantine_cases_state_is_known CHECK (state IN ('open', 'released', 'discarded')),
    -- A bundle under another name than its hash could be exchanged.
    CONSTRAINT quarantine_cases_evidence_is_content_addressed CHECK (
        (evidence_uri IS NULL) = (evidence_sha256 IS NULL) AND (evidence_uri IS NULL) = (collected_at IS NULL)
        AND coalesce(
            evidence_uri = 'evidence/' || substr(evidence_sha256, 1, 2) || '/' || evidence_sha256 || '.json', TRUE
        )
    ),
    -- Half a closing would be neither on the list of open cases nor explained.
    CONSTRAINT quarantine_cases_closing_is_whole
    CHECK ((state = 'open') = (closed_at IS NULL) AND (state = 'open') = (closing_entry IS NULL))
)
-- ;
-- What waits for its evidence is little, whatever was ever quarantined.
CREATE INDEX quarantine_cases_without_evidence ON quarantine_cases (opened_at, wal_id) WHERE evidence_uri IS NULL
-- ;
CREATE INDEX quarantine_cases_by_state ON quarantine_cases (state, opened_at, wal_id)
-- ;
-- The governance of one unit.
CREATE INDEX governance_log_by_unit ON governance_log (wal_id, entry_id) WHERE wal_id IS NOT NULL
-- ;
-- Units that were quarantined before cases existed.
INSERT INTO quarantine_cases (wal_id, quarantined_version, opened_at, reason, state)
SELECT wal_id, version, updated_at, change_reason, 'open' FROM nodd_wal_records WHERE status = 'quarantined'
-- ;
-- A case begins and is released with its unit, whoever moves it and however: no quarantine is without a case.
CREATE FUNCTION quarantine_cases_follow_their_unit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status = 'quarantined' THEN
        INSERT INTO quarantine_cases (wal_id, quarantined_version, opened_at, reason, state)
        VALUES (NEW.wal_id, NEW.version, NEW.updated_at, NEW.change_reason, 'open');
    ELSE
        UPDATE quarantine_cases SET
            state = 'released',
            closed_at = NEW.updated_at,
            closing_entry = (
                SELECT g.entry_id FROM governance_log AS g
                WHERE g.wal_id = NEW.wal_id AND g.record_version = NEW.version
            )
        WHERE wal_id = OLD.wal_id AND quarantined_version = OLD.version;
    END IF;
    RETURN NULL;
END
$$
-- ;
CREATE TRIGGER nodd_wal_records_have_their_case AFTER UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (OLD.status = 'quarantined' OR NEW.status = 'quarantined')
EXECUTE FUNCTION quarantine_cases_follow_their_unit()
-- ;
-- What a person discarded is not let in again by a later list of units.
CREATE FUNCTION quarantine_cases_keep_the_discarded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM quarantine_cases AS c
        WHERE c.wal_id = OLD.wal_id AND c.quarantined_version = OLD.version AND c.state = 'discarded'
    ) THEN
        RAISE EXCEPTION 'discarded_stays_out: %: % > %', OLD.wal_id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END
$$
-- ;
CREATE TRIGGER nodd_wal_records_discarded_stay_out BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (OLD.status = 'quarantined')
EXECUTE FUNCTION quarantine_cases_keep_the_discarded()
-- ;
-- A statement that a person types is at depth 0, the trigger above writes at depth 1.
CREATE TRIGGER quarantine_cases_are_opened_by_the_ledger BEFORE INSERT ON quarantine_cases
FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION nodd_wal_refuse_statement('cases_are_opened_by_the_ledger')
-- ;
-- Evidence comes once, a case is closed once, and only by the decision that the governance log has on it.
CREATE FUNCTION quarantine_cases_check_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF
        (NEW.wal_id, NEW.quarantined_version, NEW.opened_at, NEW.reason)
        IS NOT DISTINCT FROM (OLD.wal_id, OLD.quarantined_version, OLD.opened_at, OLD.reason)
        AND (
            OLD.evidence_uri IS NULL
            OR (NEW.evidence_uri, NEW.evidence_sha256, NEW.collected_at)
            IS NOT DISTINCT FROM (OLD.evidence_uri, OLD.evidence_sha256, OLD.collected_at)
        )
        AND (
            (NEW.state, NEW.closed_at, NEW.closing_entry)
            IS NOT DISTINCT FROM (OLD.state, OLD.closed_at, OLD.closing_entry)
            OR (
                OLD.state = 'open' AND EXISTS (
                    SELECT 1 FROM governance_log AS g
                    WHERE
                        g.entry_id = NEW.closing_entry AND g.wal_id = NEW.wal_id AND (
                            (NEW.state = 'released' AND g.record_version = NEW.quarantined_version + 1)
                            OR (NEW.state = 'discarded' AND g.action = 'discard')
                        )
                )
            )
        )
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'cases_are_filled_and_closed_once' USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME,
        TABLE = TG_TABLE_NAME;
END
$$
-- ;
CREATE TRIGGER quarantine_cases_are_filled_and_closed_once BEFORE UPDATE ON quarantine_cases
FOR EACH ROW EXECUTE FUNCTION quarantine_cases_check_change()
-- ;
CREATE TRIGGER quarantine_cases_are_kept BEFORE DELETE OR TRUNCATE ON quarantine_cases
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('cases_are_kept')
