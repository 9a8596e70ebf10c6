-- Recovery and governance: leases, the order of a key's versions, lanes, outcomes, the governance log, kill switches.

-- Who decided what, when and why; what a person or a replay did to records is told from here (SEC-02).
CREATE TABLE governance_log (
    entry_id integer PRIMARY KEY AUTOINCREMENT,
    at text NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    dataset text,
    wal_id text,
    -- The version that the decision gives the record, and the change of status that it allows or explains.
    record_version integer,
    from_status text,
    to_status text,
    reason text NOT NULL,
    change_ref text,
    details text NOT NULL,
    -- A decision without its change would allow that change at any later time, unseen: both commit together or neither.
    CONSTRAINT governance_log_decision_was_carried_out
    FOREIGN KEY (wal_id, record_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    -- A decision by nobody or for nothing is no audit.
    CONSTRAINT governance_log_entry_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT governance_log_action_is_a_word
    CHECK (length(action) BETWEEN 1 AND 40 AND action GLOB '[a-z]*' AND action NOT GLOB '*[^a-z_]*'),
    -- A reference that nobody can look up is none.
    CONSTRAINT governance_log_change_ref_is_bounded CHECK (length(change_ref) BETWEEN 1 AND 200),
    -- Half a change of status would match no transition.
    CONSTRAINT governance_log_change_is_whole CHECK (
        (record_version IS NULL) = (from_status IS NULL) AND (record_version IS NULL) = (to_status IS NULL)
        AND (record_version IS NULL OR wal_id IS NOT NULL)
    ),
    -- Leaving a terminal state is for a person to answer for, with a change that can be looked up (WSM-16).
    CONSTRAINT governance_log_override_has_change_ref
    CHECK (coalesce(from_status NOT IN ('succeeded', 'quarantined'), TRUE) OR change_ref IS NOT NULL),
    CONSTRAINT governance_log_details_are_object CHECK (json_type(details) = 'object')
) STRICT
-- ;
CREATE UNIQUE INDEX governance_log_by_decision ON governance_log (wal_id, record_version)
WHERE record_version IS NOT NULL
-- ;
CREATE INDEX governance_log_by_action ON governance_log (action, entry_id)
-- ;
CREATE TRIGGER governance_log_is_not_changed BEFORE UPDATE ON governance_log
BEGIN
    SELECT RAISE(ABORT, 'governance_log_is_append_only');
END
-- ;
CREATE TRIGGER governance_log_is_not_deleted BEFORE DELETE ON governance_log
BEGIN
    SELECT RAISE(ABORT, 'governance_log_is_append_only');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER governance_log_is_not_replaced BEFORE INSERT ON governance_log
WHEN
    EXISTS (SELECT 1 FROM governance_log AS r WHERE r.entry_id = NEW.entry_id)
    OR EXISTS (
        SELECT 1 FROM governance_log AS r WHERE r.wal_id = NEW.wal_id AND r.record_version = NEW.record_version
    )
BEGIN
    SELECT RAISE(ABORT, 'governance_log_is_append_only');
END
-- ;
-- quarantined > pending and succeeded > pending exist only with a decision on record for exactly this version (WSM-16).
DROP TRIGGER nodd_wal_records_transition_is_legal
-- ;
CREATE TRIGGER nodd_wal_records_transition_is_legal BEFORE UPDATE ON nodd_wal_records
WHEN NOT coalesce(
    OLD.status || '>' || NEW.status IN (
        'pending>in_progress', 'in_progress>succeeded', 'in_progress>failed', 'failed>pending',
        'pending>quarantined', 'failed>quarantined'
    )
    OR (
        OLD.status IN ('quarantined', 'succeeded') AND NEW.status = 'pending' AND EXISTS (
            SELECT 1 FROM governance_log AS g
            WHERE
                g.wal_id = NEW.wal_id AND g.record_version = NEW.version
                AND g.from_status = OLD.status AND g.to_status = NEW.status
        )
    ), FALSE
)
BEGIN
    SELECT json_extract(
        '{}', 'illegal_transition: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'illegal_transition');
END
-- ;
-- Datasets that are switched off: nothing of them is claimed, replayed or written (WAL-10).
CREATE TABLE kill_switches (
    switch_id integer PRIMARY KEY AUTOINCREMENT,
    -- A dataset id, or * for every dataset.
    dataset text NOT NULL,
    engaged_at text NOT NULL,
    engaged_by text NOT NULL,
    reason text NOT NULL,
    change_ref text,
    expires_at text,
    released_at text,
    released_by text,
    release_reason text,
    CONSTRAINT kill_switches_is_attributed
    CHECK (length(engaged_by) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    -- A switch that was never on would look like a release.
    CONSTRAINT kill_switches_expires_later CHECK (expires_at > engaged_at),
    -- Who switched a dataset on again must be known as well as who switched it off.
    CONSTRAINT kill_switches_release_is_attributed CHECK (
        (released_at IS NULL) = (released_by IS NULL) AND (released_at IS NULL) = (release_reason IS NULL)
    )
) STRICT
-- ;
-- Two open switches of one dataset could not be told apart when one is released.
CREATE UNIQUE INDEX kill_switches_one_open_per_dataset ON kill_switches (dataset) WHERE released_at IS NULL
-- ;
CREATE TRIGGER kill_switches_only_close BEFORE UPDATE ON kill_switches
WHEN
    OLD.released_at IS NOT NULL OR NEW.released_at IS NULL
    OR (NEW.switch_id, NEW.dataset, NEW.engaged_at, NEW.engaged_by, NEW.reason, NEW.change_ref, NEW.expires_at)
    IS NOT
    (OLD.switch_id, OLD.dataset, OLD.engaged_at, OLD.engaged_by, OLD.reason, OLD.change_ref, OLD.expires_at)
BEGIN
    SELECT RAISE(ABORT, 'kill_switches_only_close');
END
-- ;
CREATE TRIGGER kill_switches_are_not_deleted BEFORE DELETE ON kill_switches
BEGIN
    SELECT RAISE(ABORT, 'kill_switches_are_kept');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER kill_switches_are_not_replaced BEFORE INSERT ON kill_switches
WHEN EXISTS (
    SELECT 1 FROM kill_switches AS r
    WHERE r.switch_id = NEW.switch_id OR (r.dataset = NEW.dataset AND r.released_at IS NULL)
)
BEGIN
    SELECT RAISE(ABORT, 'kill_switches_one_open_per_dataset');
END
-- ;
-- Who holds claims, and until when: one row per run and dataset, so that a heartbeat is one update whatever it holds.
CREATE TABLE nodd_wal_leases (
    ingest_run_id text NOT NULL,
    dataset text NOT NULL,
    worker_id text NOT NULL,
    acquired_at text NOT NULL,
    renewed_at text NOT NULL,
    expires_at text NOT NULL,
    CONSTRAINT nodd_wal_leases_one_row_per_holder PRIMARY KEY (ingest_run_id, dataset),
    -- A lease that is over when it begins would be taken from a living worker.
    CONSTRAINT nodd_wal_leases_lasts CHECK (expires_at > renewed_at)
) STRICT
-- ;
CREATE INDEX nodd_wal_leases_by_expiry ON nodd_wal_leases (expires_at)
-- ;
-- Claims that were made before leases existed.
INSERT INTO nodd_wal_leases (ingest_run_id, dataset, worker_id, acquired_at, renewed_at, expires_at)
SELECT
    ingest_run_id, dataset, max(worker_id), max(last_attempt_at), max(last_attempt_at),
    strftime('%Y-%m-%dT%H:%M:%S', max(last_attempt_at), '+960 seconds') || '.000000Z'
FROM nodd_wal_records
WHERE status = 'in_progress'
GROUP BY ingest_run_id, dataset
-- ;
-- Which version of an object made which other one obsolete (BEY-01); an older version has one row at most.
CREATE TABLE nodd_wal_supersessions (
    older_wal_id text NOT NULL,
    newer_wal_id text NOT NULL,
    found_at text NOT NULL,
    CONSTRAINT nodd_wal_supersessions_one_successor PRIMARY KEY (older_wal_id),
    CONSTRAINT nodd_wal_supersessions_older_is_known
    FOREIGN KEY (older_wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT nodd_wal_supersessions_newer_is_known
    FOREIGN KEY (newer_wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT nodd_wal_supersessions_of_another_unit CHECK (older_wal_id <> newer_wal_id)
) STRICT
-- ;
CREATE INDEX nodd_wal_supersessions_by_newer ON nodd_wal_supersessions (newer_wal_id)
-- ;
CREATE TRIGGER nodd_wal_supersessions_are_not_changed BEFORE UPDATE ON nodd_wal_supersessions
BEGIN
    SELECT RAISE(ABORT, 'supersessions_are_append_only');
END
-- ;
CREATE TRIGGER nodd_wal_supersessions_are_not_deleted BEFORE DELETE ON nodd_wal_supersessions
BEGIN
    SELECT RAISE(ABORT, 'supersessions_are_append_only');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER nodd_wal_supersessions_are_not_replaced BEFORE INSERT ON nodd_wal_supersessions
WHEN EXISTS (SELECT 1 FROM nodd_wal_supersessions AS r WHERE r.older_wal_id = NEW.older_wal_id)
BEGIN
    SELECT RAISE(ABORT, 'supersessions_are_append_only');
END
-- ;
-- What each success made, so that a later success of the same unit can be compared with it (WAL-11).
CREATE TABLE nodd_wal_outcomes (
    wal_id text NOT NULL,
    attempt integer NOT NULL,
    at text NOT NULL,
    run_id text NOT NULL,
    replay_run_id text,
    item_sha256 text,
    provenance_sha256 text,
    code_version text NOT NULL,
    -- The Item that stands is a newer unit's, so its hash says nothing about this one.
    superseded integer NOT NULL,
    CONSTRAINT nodd_wal_outcomes_one_row_per_attempt PRIMARY KEY (wal_id, attempt),
    CONSTRAINT nodd_wal_outcomes_record_is_known FOREIGN KEY (wal_id) REFERENCES nodd_wal_records (wal_id)
) STRICT
-- ;
CREATE TRIGGER nodd_wal_outcomes_are_not_changed BEFORE UPDATE ON nodd_wal_outcomes
BEGIN
    SELECT RAISE(ABORT, 'outcomes_are_append_only');
END
-- ;
CREATE TRIGGER nodd_wal_outcomes_are_not_deleted BEFORE DELETE ON nodd_wal_outcomes
BEGIN
    SELECT RAISE(ABORT, 'outcomes_are_append_only');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER nodd_wal_outcomes_are_not_replaced BEFORE INSERT ON nodd_wal_outcomes
WHEN EXISTS (SELECT 1 FROM nodd_wal_outcomes AS r WHERE r.wal_id = NEW.wal_id AND r.attempt = NEW.attempt)
BEGIN
    SELECT RAISE(ABORT, 'outcomes_are_append_only');
END
-- ;
-- Successes that differ from the success before them.
CREATE TABLE replay_mismatches (
    wal_id text NOT NULL,
    attempt integer NOT NULL,
    earlier_attempt integer NOT NULL,
    at text NOT NULL,
    dataset text NOT NULL,
    replay_run_id text,
    item_differs integer NOT NULL,
    provenance_differs integer NOT NULL,
    -- An approved repair is meant to differ; anything else is a defect.
    permitted integer NOT NULL,
    CONSTRAINT replay_mismatches_one_row_per_attempt PRIMARY KEY (wal_id, attempt),
    CONSTRAINT replay_mismatches_outcome_is_known
    FOREIGN KEY (wal_id, attempt) REFERENCES nodd_wal_outcomes (wal_id, attempt),
    CONSTRAINT replay_mismatches_earlier_outcome_is_known
    FOREIGN KEY (wal_id, earlier_attempt) REFERENCES nodd_wal_outcomes (wal_id, attempt),
    CONSTRAINT replay_mismatches_something_differs CHECK (item_differs OR provenance_differs)
) STRICT
-- ;
CREATE TRIGGER replay_mismatches_are_not_changed BEFORE UPDATE ON replay_mismatches
BEGIN
    SELECT RAISE(ABORT, 'replay_mismatches_are_append_only');
END
-- ;
CREATE TRIGGER replay_mismatches_are_not_deleted BEFORE DELETE ON replay_mismatches
BEGIN
    SELECT RAISE(ABORT, 'replay_mismatches_are_append_only');
END
-- ;
-- INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER replay_mismatches_are_not_replaced BEFORE INSERT ON replay_mismatches
WHEN EXISTS (SELECT 1 FROM replay_mismatches AS r WHERE r.wal_id = NEW.wal_id AND r.attempt = NEW.attempt)
BEGIN
    SELECT RAISE(ABORT, 'replay_mismatches_are_append_only');
END
-- ;
ALTER TABLE nodd_wal_records ADD COLUMN lane text NOT NULL DEFAULT 'live'
-- A lane that nobody claims from would never be worked on.
CONSTRAINT nodd_wal_records_lane_is_known CHECK (lane IN ('live', 'bulk'))
-- ;
ALTER TABLE nodd_wal_records ADD COLUMN replay_run_id text
-- ;
-- Claims, in their order: live before bulk, urgent before normal, old before new.
CREATE INDEX nodd_wal_records_to_claim ON nodd_wal_records (
    dataset, partition_key, lane DESC, (CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END), event_time,
    wal_id
) WHERE status = 'pending'
-- ;
-- Recovery.
CREATE INDEX nodd_wal_records_in_progress ON nodd_wal_records (ingest_run_id, dataset) WHERE status = 'in_progress'
-- ;
-- Lists and selections.
CREATE INDEX nodd_wal_records_by_selection ON nodd_wal_records (status, dataset, event_time, wal_id)
-- ;
-- Work and lists of one partition, the newest first.
DROP INDEX nodd_wal_records_by_work
-- ;
CREATE INDEX nodd_wal_records_by_work ON nodd_wal_records (status, dataset, partition_key, event_time, wal_id)
-- ;
-- The history keeps the new columns, too.
DROP TRIGGER nodd_wal_records_write_first_history
-- ;
CREATE TRIGGER nodd_wal_records_write_first_history AFTER INSERT ON nodd_wal_records
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    VALUES (
        NEW.wal_id, NEW.version, NEW.updated_at, NEW.changed_by, NULL, NEW.status, NEW.change_reason,
        NEW.ingest_run_id, NEW.attempts,
        json_object(
            'dataset', NEW.dataset, 'object_uri', NEW.object_uri, 'provider', NEW.provider, 'queue', NEW.queue,
            'event_time', NEW.event_time, 'time_range_start', NEW.time_range_start,
            'time_range_end', NEW.time_range_end, 'created_at', NEW.created_at,
            'object_version', NEW.object_version, 'object_size', NEW.object_size, 'sequencer', NEW.sequencer,
            'partition_key', NEW.partition_key, 'priority', NEW.priority, 'schema_version', NEW.schema_version,
            'sqs_message_id', NEW.sqs_message_id, 'sns_message_id', NEW.sns_message_id, 'topic_arn', NEW.topic_arn,
            'subject', NEW.subject, 'extension', json(NEW.extension),
            'last_attempt_at', NEW.last_attempt_at, 'last_error_code', NEW.last_error_code,
            'last_error_message', NEW.last_error_message, 'integrity_status', NEW.integrity_status,
            'metadata_status', NEW.metadata_status, 'stac_status', NEW.stac_status,
            'provenance_status', NEW.provenance_status, 'stac_item_id', NEW.stac_item_id,
            'stac_collection_id', NEW.stac_collection_id, 'stac_item_href', NEW.stac_item_href,
            'worker_id', NEW.worker_id, 'replay_reason', NEW.replay_reason, 'next_attempt_at', NEW.next_attempt_at,
            'lane', NEW.lane, 'replay_run_id', NEW.replay_run_id
        )
    );
END
-- ;
DROP TRIGGER nodd_wal_records_write_history
-- ;
CREATE TRIGGER nodd_wal_records_write_history AFTER UPDATE ON nodd_wal_records
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    VALUES (
        NEW.wal_id, NEW.version, NEW.updated_at, NEW.changed_by, OLD.status, NEW.status, NEW.change_reason,
        NEW.ingest_run_id, NEW.attempts,
        json_object(
            'last_attempt_at', NEW.last_attempt_at, 'last_error_code', NEW.last_error_code,
            'last_error_message', NEW.last_error_message, 'integrity_status', NEW.integrity_status,
            'metadata_status', NEW.metadata_status, 'stac_status', NEW.stac_status,
            'provenance_status', NEW.provenance_status, 'stac_item_id', NEW.stac_item_id,
            'stac_collection_id', NEW.stac_collection_id, 'stac_item_href', NEW.stac_item_href,
            'worker_id', NEW.worker_id, 'replay_reason', NEW.replay_reason, 'next_attempt_at', NEW.next_attempt_at,
            'lane', NEW.lane, 'replay_run_id', NEW.replay_run_id
        )
    );
END
