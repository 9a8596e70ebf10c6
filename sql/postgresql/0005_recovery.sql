-- Recovery and governance: leases, the order of a key's versions, lanes, outcomes, the governance log, kill switches.

-- Who decided what, when and why; what a person or a replay did to records is told from here (SEC-02).
CREATE TABLE governance_log (
    entry_id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    dataset text,
    wal_id text COLLATE "C",
    -- The version that the decision gives the record, and the change of status that it allows or explains.
    record_version integer,
    from_status text,
    to_status text,
    reason text NOT NULL,
    change_ref text,
    details jsonb NOT NULL,
    CONSTRAINT governance_log_one_row_per_entry PRIMARY KEY (entry_id),
    -- A decision without its change would allow that change at any later time, unseen: both commit together or neither.
    CONSTRAINT governance_log_decision_was_carried_out
    FOREIGN KEY (wal_id, record_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    -- A decision by nobody or for nothing is no audit.
    CONSTRAINT governance_log_entry_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT governance_log_action_is_a_word CHECK (action ~ '^[a-z][a-z_]{0,39}$'),
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
    CONSTRAINT governance_log_details_are_object CHECK (jsonb_typeof(details) = 'object')
)
-- ;
CREATE UNIQUE INDEX governance_log_by_decision ON governance_log (wal_id, record_version)
WHERE record_version IS NOT NULL
-- ;
CREATE INDEX governance_log_by_action ON governance_log (action, entry_id)
-- ;
CREATE TRIGGER governance_log_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON governance_log
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('governance_log_is_append_only')
-- ;
-- quarantined > pending and succeeded > pending exist only with a decision on record for exactly this version (WSM-16).
CREATE FUNCTION nodd_wal_refuse_without_decision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status IN ('quarantined', 'succeeded') AND NEW.status = 'pending' AND EXISTS (
        SELECT 1 FROM governance_log AS g
        WHERE
            g.wal_id = NEW.wal_id AND g.record_version = NEW.version
            AND g.from_status = OLD.status AND g.to_status = NEW.status
    ) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'illegal_transition: %: % > %', OLD.wal_id, OLD.status, coalesce(NEW.status, 'null')
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END
$$
-- ;
DROP TRIGGER nodd_wal_records_transition_is_legal ON nodd_wal_records
-- ;
CREATE TRIGGER nodd_wal_records_transition_is_legal BEFORE UPDATE ON nodd_wal_records
FOR EACH ROW WHEN (
    NOT coalesce(
        OLD.status || '>' || NEW.status IN (
            'pending>in_progress', 'in_progress>succeeded', 'in_progress>failed', 'failed>pending',
            'pending>quarantined', 'failed>quarantined'
        ), FALSE
    )
)
EXECUTE FUNCTION nodd_wal_refuse_without_decision()
-- ;
-- Datasets that are switched off: nothing of them is claimed, replayed or written (WAL-10).
CREATE TABLE kill_switches (
    switch_id bigint GENERATED ALWAYS AS IDENTITY,
    -- A dataset id, or * for every dataset.
    dataset text NOT NULL,
    engaged_at timestamptz NOT NULL,
    engaged_by text NOT NULL,
    reason text NOT NULL,
    change_ref text,
    expires_at timestamptz,
    released_at timestamptz,
    released_by text,
    release_reason text,
    CONSTRAINT kill_switches_one_row_per_switch PRIMARY KEY (switch_id),
    CONSTRAINT kill_switches_is_attributed
    CHECK (length(engaged_by) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    -- A switch that was never on would look like a release.
    CONSTRAINT kill_switches_expires_later CHECK (expires_at > engaged_at),
    -- Who switched a dataset on again must be known as well as who switched it off.
    CONSTRAINT kill_switches_release_is_attributed CHECK (
        (released_at IS NULL) = (released_by IS NULL) AND (released_at IS NULL) = (release_reason IS NULL)
    )
)
-- ;
-- Two open switches of one dataset could not be told apart when one is released.
CREATE UNIQUE INDEX kill_switches_one_open_per_dataset ON kill_switches (dataset) WHERE released_at IS NULL
-- ;
CREATE TRIGGER kill_switches_only_close BEFORE UPDATE ON kill_switches
FOR EACH ROW WHEN (
    OLD.released_at IS NOT NULL OR NEW.released_at IS NULL
    OR (NEW.switch_id, NEW.dataset, NEW.engaged_at, NEW.engaged_by, NEW.reason, NEW.change_ref, NEW.expires_at)
    IS DISTINCT FROM
    (OLD.switch_id, OLD.dataset, OLD.engaged_at, OLD.engaged_by, OLD.reason, OLD.change_ref, OLD.expires_at)
)
EXECUTE FUNCTION nodd_wal_refuse_statement('kill_switches_only_close')
-- ;
CREATE TRIGGER kill_switches_are_kept BEFORE DELETE OR TRUNCATE ON kill_switches
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('kill_switches_are_kept')
-- ;
-- Who holds claims, and until when: one row per run and dataset, so that a heartbeat is one update whatever it holds.
CREATE TABLE nodd_wal_leases (
    ingest_run_id text NOT NULL,
    dataset text NOT NULL,
    worker_id text NOT NULL,
    acquired_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT nodd_wal_leases_one_row_per_holder PRIMARY KEY (ingest_run_id, dataset),
    -- A lease that is over when it begins would be taken from a living worker.
    CONSTRAINT nodd_wal_leases_lasts CHECK (expires_at > renewed_at)
)
-- ;
CREATE INDEX nodd_wal_leases_by_expiry ON nodd_wal_leases (expires_at)
-- ;
-- Claims that were made before leases existed.
INSERT INTO nodd_wal_leases (ingest_run_id, dataset, worker_id, acquired_at, renewed_at, expires_at)
SELECT
    ingest_run_id, dataset, max(worker_id), max(last_attempt_at), max(last_attempt_at),
    max(last_attempt_at) + interval '960 seconds'
FROM nodd_wal_records
WHERE status = 'in_progress'
GROUP BY ingest_run_id, dataset
-- ;
-- Which version of an object made which other one obsolete (BEY-01); an older version has one row at most.
CREATE TABLE nodd_wal_supersessions (
    older_wal_id text COLLATE "C" NOT NULL,
    newer_wal_id text COLLATE "C" NOT NULL,
    found_at timestamptz NOT NULL,
    CONSTRAINT nodd_wal_supersessions_one_successor PRIMARY KEY (older_wal_id),
    CONSTRAINT nodd_wal_supersessions_older_is_known
    FOREIGN KEY (older_wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT nodd_wal_supersessions_newer_is_known
    FOREIGN KEY (newer_wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT nodd_wal_supersessions_of_another_unit CHECK (older_wal_id <> newer_wal_id)
)
-- ;
CREATE INDEX nodd_wal_supersessions_by_newer ON nodd_wal_supersessions (newer_wal_id)
-- ;
CREATE TRIGGER nodd_wal_supersessions_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON nodd_wal_supersessions
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('supersessions_are_append_only')
-- ;
-- What each success made, so that a later success of the same unit can be compared with it (WAL-11).
CREATE TABLE nodd_wal_outcomes (
    wal_id text COLLATE "C" NOT NULL,
    attempt integer NOT NULL,
    at timestamptz NOT NULL,
    run_id text NOT NULL,
    replay_run_id text,
    item_sha256 text,
    provenance_sha256 text,
    code_version text NOT NULL,
    -- The Item that stands is a newer unit's, so its hash says nothing about this one.
    superseded boolean NOT NULL,
    CONSTRAINT nodd_wal_outcomes_one_row_per_attempt PRIMARY KEY (wal_id, attempt),
    CONSTRAINT nodd_wal_outcomes_record_is_known FOREIGN KEY (wal_id) REFERENCES nodd_wal_records (wal_id)
)
-- ;
CREATE TRIGGER nodd_wal_outcomes_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON nodd_wal_outcomes
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('outcomes_are_append_only')
-- ;
-- Successes that differ from the success before them.
CREATE TABLE replay_mismatches (
    wal_id text COLLATE "C" NOT NULL,
    attempt integer NOT NULL,
    earlier_attempt integer NOT NULL,
    at timestamptz NOT NULL,
    dataset text NOT NULL,
    replay_run_id text,
    item_differs boolean NOT NULL,
    provenance_differs boolean NOT NULL,
    -- An approved repair is meant to differ; anything else is a defect.
    permitted boolean NOT NULL,
    CONSTRAINT replay_mismatches_one_row_per_attempt PRIMARY KEY (wal_id, attempt),
    CONSTRAINT replay_mismatches_outcome_is_known
    FOREIGN KEY (wal_id, attempt) REFERENCES nodd_wal_outcomes (wal_id, attempt),
    CONSTRAINT replay_mismatches_earlier_outcome_is_known
    FOREIGN KEY (wal_id, earlier_attempt) REFERENCES nodd_wal_outcomes (wal_id, attempt),
    CONSTRAINT replay_mismatches_something_differs CHECK (item_differs OR provenance_differs)
)
-- ;
CREATE TRIGGER replay_mismatches_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON replay_mismatches
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_refuse_statement('replay_mismatches_are_append_only')
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
CREATE OR REPLACE FUNCTION nodd_wal_write_first_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    SELECT
        n.wal_id, n.version, n.updated_at, n.changed_by, NULL, n.status, n.change_reason, n.ingest_run_id, n.attempts,
        jsonb_build_object(
            'dataset', n.dataset, 'object_uri', n.object_uri, 'provider', n.provider, 'queue', n.queue,
            'event_time', n.event_time, 'time_range_start', n.time_range_start,
            'time_range_end', n.time_range_end, 'created_at', n.created_at,
            'object_version', n.object_version, 'object_size', n.object_size, 'sequencer', n.sequencer,
            'partition_key', n.partition_key, 'priority', n.priority, 'schema_version', n.schema_version,
            'sqs_message_id', n.sqs_message_id, 'sns_message_id', n.sns_message_id, 'topic_arn', n.topic_arn,
            'subject', n.subject, 'extension', n.extension,
            'last_attempt_at', n.last_attempt_at, 'last_error_code', n.last_error_code,
            'last_error_message', n.last_error_message, 'integrity_status', n.integrity_status,
            'metadata_status', n.metadata_status, 'stac_status', n.stac_status,
            'provenance_status', n.provenance_status, 'stac_item_id', n.stac_item_id,
            'stac_collection_id', n.stac_collection_id, 'stac_item_href', n.stac_item_href,
            'worker_id', n.worker_id, 'replay_reason', n.replay_reason, 'next_attempt_at', n.next_attempt_at,
            'lane', n.lane, 'replay_run_id', n.replay_run_id
        )
    FROM new_rows AS n;
    RETURN NULL;
END
$$
-- ;
CREATE OR REPLACE FUNCTION nodd_wal_write_history() RETURNS trigger LANGUAGE plpgsql SET enable_nestloop = off AS $$
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    SELECT
        n.wal_id, n.version, n.updated_at, n.changed_by, o.status, n.status, n.change_reason, n.ingest_run_id,
        n.attempts,
        jsonb_build_object(
            'last_attempt_at', n.last_attempt_at, 'last_error_code', n.last_error_code,
            'last_error_message', n.last_error_message, 'integrity_status', n.integrity_status,
            'metadata_status', n.metadata_status, 'stac_status', n.stac_status,
            'provenance_status', n.provenance_status, 'stac_item_id', n.stac_item_id,
            'stac_collection_id', n.stac_collection_id, 'stac_item_href', n.stac_item_href,
            'worker_id', n.worker_id, 'replay_reason', n.replay_reason, 'next_attempt_at', n.next_attempt_at,
            'lane', n.lane, 'replay_run_id', n.replay_run_id
        )
    FROM new_rows AS n INNER JOIN old_rows AS o ON n.wal_id = o.wal_id;
    RETURN NULL;
END
$$
