-- Quarantine cases: what a person needs to judge a quarantined unit, and how the case ended (BEY-06).

-- One case per quarantine: a unit that is released and comes back has another one.
CREATE TABLE quarantine_cases (
    wal_id text NOT NULL,
    -- The version that the quarantine gave the record.
    quarantined_version integer NOT NULL,
    opened_at text NOT NULL,
    reason text NOT NULL,
    -- The evidence bundle, relative to the storage URL; null until it is collected.
    evidence_uri text,
    evidence_sha256 text,
    collected_at text,
    state text NOT NULL,
    closed_at text,
    -- Who closed it, why and under which change.
    closing_entry integer,
    CONSTRAINT quarantine_cases_one_row_per_quarantine PRIMARY KEY (wal_id, quarantined_version),
    -- A case of nothing could be closed for something. Deferred: the history may be written after the case.
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
) STRICT
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
CREATE TRIGGER nodd_wal_records_open_their_case AFTER UPDATE ON nodd_wal_records
WHEN NEW.status = 'quarantined'
BEGIN
    INSERT INTO quarantine_cases (wal_id, quarantined_version, opened_at, reason, state)
    VALUES (NEW.wal_id, NEW.version, NEW.updated_at, NEW.change_reason, 'open');
END
-- ;
CREATE TRIGGER nodd_wal_records_release_their_case AFTER UPDATE ON nodd_wal_records
WHEN OLD.status = 'quarantined'
BEGIN
    UPDATE quarantine_cases SET
        state = 'released',
        closed_at = NEW.updated_at,
        closing_entry = (
            SELECT g.entry_id FROM governance_log AS g
            WHERE g.wal_id = NEW.wal_id AND g.record_version = NEW.version
        )
    WHERE wal_id = OLD.wal_id AND quarantined_version = OLD.version;
END
-- ;
-- What a person discarded is not let in again by a later list of units.
CREATE TRIGGER nodd_wal_records_discarded_stay_out BEFORE UPDATE ON nodd_wal_records
WHEN OLD.status = 'quarantined' AND EXISTS (
    SELECT 1 FROM quarantine_cases AS c
    WHERE c.wal_id = OLD.wal_id AND c.quarantined_version = OLD.version AND c.state = 'discarded'
)
BEGIN
    SELECT json_extract(
        '{}', 'discarded_stays_out: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'discarded_stays_out');
END
-- ;
-- A case is accepted only where its unit stands quarantined at that version without one, so only from the trigger above;
-- this also stops INSERT OR REPLACE, which deletes rows without a DELETE trigger.
CREATE TRIGGER quarantine_cases_are_opened_by_the_ledger BEFORE INSERT ON quarantine_cases
WHEN
    EXISTS (
        SELECT 1 FROM quarantine_cases AS c
        WHERE c.wal_id = NEW.wal_id AND c.quarantined_version = NEW.quarantined_version
    )
    OR NOT EXISTS (
        SELECT 1 FROM nodd_wal_records AS r
        WHERE r.wal_id = NEW.wal_id AND r.version = NEW.quarantined_version AND r.status = 'quarantined'
    )
BEGIN
    SELECT RAISE(ABORT, 'cases_are_opened_by_the_ledger');
END
-- ;
-- Evidence comes once, a case is closed once, and only by the decision that the governance log has on it.
CREATE TRIGGER quarantine_cases_are_filled_and_closed_once BEFORE UPDATE ON quarantine_cases
WHEN NOT (
    (NEW.wal_id, NEW.quarantined_version, NEW.opened_at, NEW.reason)
    IS (OLD.wal_id, OLD.quarantined_version, OLD.opened_at, OLD.reason)
    AND (
        OLD.evidence_uri IS NULL
        OR (NEW.evidence_uri, NEW.evidence_sha256, NEW.collected_at)
        IS (OLD.evidence_uri, OLD.evidence_sha256, OLD.collected_at)
    )
    AND (
        (NEW.state, NEW.closed_at, NEW.closing_entry) IS (OLD.state, OLD.closed_at, OLD.closing_entry)
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
)
BEGIN
    SELECT RAISE(ABORT, 'cases_are_filled_and_closed_once');
END
-- ;
CREATE TRIGGER quarantine_cases_are_kept BEFORE DELETE ON quarantine_cases
BEGIN
    SELECT RAISE(ABORT, 'cases_are_kept');
END
