-- The schema of 0.1.0, in one text for both databases; kfm_dagster/storage/macros.py defines each @macro.
-- No SQL can alter recorded evidence: triggers refuse alterations, even by the owner, and a deployment's role has no
-- right to most alterations (sql/queries/roles.sql).

-- postgresql: its triggers call a function. This one raises the name of the rule, and the row's id and change if the
-- trigger names their columns.
CREATE FUNCTION kfm_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', CASE
        WHEN TG_NARGS = 1 THEN TG_ARGV[0]
        ELSE format(
            '%s: %s: %s > %s', TG_ARGV[0],
            coalesce(to_jsonb(OLD) ->> TG_ARGV[1], to_jsonb(NEW) ->> TG_ARGV[1]),
            coalesce(to_jsonb(OLD) ->> TG_ARGV[2], 'null'), coalesce(to_jsonb(NEW) ->> TG_ARGV[2], 'null')
        )
    END USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME;
END
$$;

-- Facts about the deployment as a whole. `id` marks every root that belongs to this database
-- (kfm_dagster/storage/roots.py). `environment` names an environment that has used the database; once prod is named, an
-- override needs a second person, whatever environment a client states (WSM-21). `first_day` is the first day with a
-- partition; the earliest value counts, because units of days without a partition would never get a run (DAG-12).
CREATE TABLE deployment (
    fact @id NOT NULL,
    value @id NOT NULL,
    at @time NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT deployment_one_row_per_value PRIMARY KEY (fact, value),
    CONSTRAINT deployment_value_is_of_its_fact CHECK (
        CASE fact
            WHEN 'id' THEN length(value) = 32
            WHEN 'environment' THEN value IN ('dev', 'stage', 'prod')
            WHEN 'first_day' THEN @is_day(value)
            ELSE FALSE
        END
    ),
    CONSTRAINT deployment_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000)
) @strict;

-- With two ids, a root would be foreign to some of the processes.
CREATE UNIQUE INDEX deployment_has_one_id ON deployment (fact) WHERE fact = 'id';

-- postgresql: its random function returns a UUID of version 4.
INSERT INTO deployment (fact, value, at, actor, reason)
VALUES ('id', replace(gen_random_uuid()::text, '-', ''), now(), 'kfm_dagster', 'a new database');

-- sqlite: its random function returns bytes, not a UUID.
INSERT INTO deployment (fact, value, at, actor, reason)
VALUES ('id', lower(hex(randomblob(16))), @now, 'kfm_dagster', 'a new database');

@append_only(deployment, deployment_is_kept, (fact, value));

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger.
@refuse(
    deployment_id_is_not_replaced, INSERT ON deployment, deployment_has_one_id,
    NEW.fact = 'id' AND EXISTS (SELECT 1 FROM deployment AS r WHERE r.fact = 'id')
);

-- Run-state: the outcome of a node in a run, by which a repeated call is skipped (run-state pattern, section 1).
CREATE TABLE run_state (
    dataset_id text NOT NULL,
    run_id text NOT NULL,
    lakefs_branch text NOT NULL,
    inputs_hash text NOT NULL,
    validation_summary @json NOT NULL,
    outcome text NOT NULL,
    recorded_at @time NOT NULL,
    -- Location of the node's output, so that a skip can reuse it.
    artifact_uri text,
    artifact_sha256 text,
    CONSTRAINT run_state_one_record_per_node_and_run PRIMARY KEY (dataset_id, run_id),
    CONSTRAINT run_state_outcome_is_known CHECK (outcome IN ('success', 'failed', 'partial', 'skipped')),
    CONSTRAINT run_state_inputs_hash_is_sha256 CHECK (substr(inputs_hash, 1, 7) = 'sha256:' AND @sha256(substr(inputs_hash, 8))),
    CONSTRAINT run_state_validation_summary_is_object CHECK (@json_type(validation_summary) = 'object'),
    -- A success without an output could not be reused.
    CONSTRAINT run_state_success_has_artifact CHECK (outcome <> 'success' OR artifact_sha256 IS NOT NULL)
) @strict;

CREATE INDEX run_state_by_run ON run_state (run_id);

-- A success is replaced only by work on other inputs or by a rollback, and the record of a rollback only by a rollback
-- (RSP-05, PCS-03).
@refuse(
    run_state_success_is_kept, UPDATE ON run_state, run_state_success_is_kept,
    (NEW.dataset_id, NEW.run_id) IS DISTINCT FROM (OLD.dataset_id, OLD.run_id)
    OR (OLD.outcome = 'success' AND NEW.outcome = 'skipped')
    OR (
        (
            (OLD.outcome = 'success' AND NEW.inputs_hash = OLD.inputs_hash)
            OR OLD.validation_summary ->> 'rolled_back_by' IS NOT NULL
        )
        AND NOT (
            NEW.outcome = 'failed' AND NEW.artifact_uri IS NULL
            AND NEW.validation_summary ->> 'rolled_back_by' IS NOT NULL
        )
    )
);

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger.
CREATE TRIGGER run_state_success_is_not_replaced BEFORE INSERT ON run_state
WHEN EXISTS (
    SELECT 1 FROM run_state AS r
    WHERE
        r.dataset_id = NEW.dataset_id AND r.run_id = NEW.run_id
        AND (
            (r.outcome = 'success' AND NEW.outcome = 'skipped')
            OR (
                (
                    (r.outcome = 'success' AND NEW.inputs_hash = r.inputs_hash)
                    OR r.validation_summary ->> 'rolled_back_by' IS NOT NULL
                )
                AND NOT (
                    NEW.outcome = 'failed' AND NEW.artifact_uri IS NULL
                    AND NEW.validation_summary ->> 'rolled_back_by' IS NOT NULL
                )
            )
        )
)
BEGIN
    SELECT RAISE(ABORT, 'run_state_success_is_kept');
END;

@kept(run_state, run_state_is_kept);

-- The ledger (NODD WAL): status and history of every object. kfm_dagster/ledger/state_machine.py defines the states.
-- A refusing trigger raises the text "rule: wal_id: from > to".

-- Reasons for a record's return to pending. A reason of replay_plan.yaml is added as a row at its first use.
CREATE TABLE replay_reasons (
    code @id NOT NULL,
    meaning text NOT NULL,
    CONSTRAINT replay_reasons_one_row_per_code PRIMARY KEY (code),
    CONSTRAINT replay_reasons_code_is_short CHECK (length(code) BETWEEN 1 AND 60)
) @strict;

INSERT INTO replay_reasons (code, meaning) VALUES
    ('backfill', 'a day is ingested again from the bucket'),
    ('dlq-drain', 'its message came from the dead-letter queue'),
    ('incident', 'an incident is repaired'),
    ('retry', 'a failed attempt is tried again under the contract'),
    ('test', 'a test of the pipeline itself')
;

CREATE TABLE nodd_wal_records (
    -- The canonical fields, in the order of the NODD WAL specification, section 3.
    wal_id @id NOT NULL,
    dataset text NOT NULL,
    object_uri text NOT NULL,
    provider text NOT NULL,
    queue text NOT NULL,
    event_time @time NOT NULL,
    time_range_start @time NOT NULL,
    time_range_end @time NOT NULL,
    status text NOT NULL,
    attempts integer NOT NULL,
    last_attempt_at @time,
    last_error_code text,
    last_error_message text,
    integrity_status text NOT NULL,
    metadata_status text NOT NULL,
    stac_status text NOT NULL,
    provenance_status text NOT NULL,
    stac_item_id text,
    stac_collection_id text,
    stac_item_href text,
    ingest_run_id text,
    worker_id text,
    replay_reason text,
    created_at @time NOT NULL,
    updated_at @time NOT NULL,
    version integer NOT NULL,
    -- The extension columns; kfm_dagster/ledger/record.py describes each.
    object_version text,
    object_size @bigint,
    sequencer text,
    partition_key text NOT NULL,
    priority text NOT NULL,
    schema_version text NOT NULL,
    sqs_message_id text,
    sns_message_id text,
    topic_arn text,
    subject text,
    next_attempt_at @time,
    changed_by text NOT NULL,
    change_reason text NOT NULL,
    extension @json NOT NULL,
    lane text NOT NULL DEFAULT 'live',
    replay_run_id text,
    -- Limit of units of the next run that claims this unit, set after a run with several units died; NULL: no limit.
    batch_limit integer,
    -- Two records of one unit would be ingested twice.
    CONSTRAINT nodd_wal_records_one_record_per_unit PRIMARY KEY (wal_id),
    -- A reason outside the vocabulary could not be counted or governed.
    CONSTRAINT nodd_wal_records_replay_reason_is_governed FOREIGN KEY (replay_reason) REFERENCES replay_reasons (code),
    -- With another spelling of its id, a unit would be a second unit.
    CONSTRAINT nodd_wal_records_wal_id_is_uuid
    CHECK (wal_id LIKE '________-____-____-____-____________' AND @hexadecimal(replace(wal_id, '-', ''))),
    -- A unit with an unknown status would never be claimed.
    CONSTRAINT nodd_wal_records_status_is_known
    CHECK (status IN ('pending', 'in_progress', 'succeeded', 'failed', 'quarantined')),
    CONSTRAINT nodd_wal_records_integrity_status_is_known
    CHECK (integrity_status IN ('unknown', 'ok', 'suspect', 'failed')),
    CONSTRAINT nodd_wal_records_metadata_status_is_known
    CHECK (metadata_status IN ('unknown', 'ok', 'suspect', 'failed')),
    CONSTRAINT nodd_wal_records_stac_status_is_known
    CHECK (stac_status IN ('unknown', 'created', 'updated', 'no-op', 'failed')),
    CONSTRAINT nodd_wal_records_provenance_status_is_known
    CHECK (provenance_status IN ('unknown', 'ok', 'partial', 'failed')),
    CONSTRAINT nodd_wal_records_priority_is_known CHECK (priority IN ('high', 'normal', 'low')),
    -- A negative count would grant attempts beyond the limit.
    CONSTRAINT nodd_wal_records_attempts_are_counted CHECK (attempts >= 0),
    -- The version orders the history; it begins at 1.
    CONSTRAINT nodd_wal_records_version_is_positive CHECK (version >= 1),
    -- The message of a success without Item or provenance would be deleted, and the object lost.
    CONSTRAINT nodd_wal_records_success_is_complete CHECK (
        status <> 'succeeded' OR (
            integrity_status IN ('ok', 'suspect') AND metadata_status IN ('ok', 'suspect')
            AND stac_status IN ('created', 'updated', 'no-op') AND provenance_status IN ('ok', 'partial')
        )
    ),
    -- Repeats a part of the rule above, because reports read only stac_status.
    CONSTRAINT nodd_wal_records_failed_item_is_no_success CHECK (stac_status <> 'failed' OR status <> 'succeeded'),
    -- A search by time would miss a range that ends before it starts.
    CONSTRAINT nodd_wal_records_time_range_is_ordered CHECK (time_range_start <= time_range_end),
    -- Text sorts as time only if it has a single form; PostgreSQL has a type for times.
    @sqlite(CONSTRAINT nodd_wal_records_times_are_rfc3339 CHECK (
        @rfc3339(event_time) AND @rfc3339(time_range_start) AND @rfc3339(time_range_end) AND @rfc3339(created_at)
        AND @rfc3339(updated_at) AND @rfc3339(last_attempt_at) AND @rfc3339(next_attempt_at)
    ),)
    -- A unit with another day would never be claimed by the run of its partition.
    CONSTRAINT nodd_wal_records_partition_is_day_of_start CHECK (partition_key = @utc_day(time_range_start)),
    -- A failure without a code could be neither selected for replay nor explained.
    CONSTRAINT nodd_wal_records_trouble_has_code
    CHECK (status NOT IN ('failed', 'quarantined') OR last_error_code IS NOT NULL),
    CONSTRAINT nodd_wal_records_error_code_is_bounded CHECK (length(last_error_code) BETWEEN 1 AND 100),
    -- An unbounded text would let one bad object fill the ledger.
    CONSTRAINT nodd_wal_records_error_message_is_bounded CHECK (length(last_error_message) <= 500),
    -- A claim without a run could not be fenced or recovered.
    CONSTRAINT nodd_wal_records_claim_is_attributed CHECK (
        status <> 'in_progress'
        OR (ingest_run_id IS NOT NULL AND worker_id IS NOT NULL AND last_attempt_at IS NOT NULL)
    ),
    -- A due time means "try again", so only a failed record has a due time.
    CONSTRAINT nodd_wal_records_due_time_is_of_failed CHECK (next_attempt_at IS NULL OR status = 'failed'),
    -- A change without actor or reason could not be audited.
    CONSTRAINT nodd_wal_records_change_is_attributed CHECK (length(changed_by) > 0 AND length(change_reason) > 0),
    CONSTRAINT nodd_wal_records_extension_is_object CHECK (@json_type(extension) = 'object'),
    -- Units in an unknown lane would never be claimed.
    CONSTRAINT nodd_wal_records_lane_is_known CHECK (lane IN ('live', 'bulk')),
    -- With a limit below 1, no run could claim the unit.
    CONSTRAINT nodd_wal_records_batch_limit_is_positive CHECK (batch_limit >= 1)
) @strict;

-- Units are unique even if a person inserts a record, with any UUID as wal_id. The index also serves finding records by
-- object. A missing version and an empty version are different identities, as in wal_id.
CREATE UNIQUE INDEX nodd_wal_records_identity_is_unique
ON nodd_wal_records (object_uri, dataset, time_range_start, coalesce('=' || object_version, ''));

CREATE INDEX nodd_wal_records_by_work ON nodd_wal_records (status, dataset, partition_key, event_time, wal_id);

-- Claims, in their order: live before bulk, urgent before normal, old before new.
CREATE INDEX nodd_wal_records_to_claim ON nodd_wal_records (
    dataset, partition_key, lane DESC, (CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END), event_time,
    wal_id
) WHERE status = 'pending';

-- Units of runs that died, which are claimed in ever smaller batches.
CREATE INDEX nodd_wal_records_bisected ON nodd_wal_records (dataset, partition_key, batch_limit)
WHERE status = 'pending' AND batch_limit IS NOT NULL;

-- Failed units by the time of their next attempt.
CREATE INDEX nodd_wal_records_by_due_time ON nodd_wal_records (next_attempt_at) WHERE status = 'failed';

-- Units in progress by run, for recovery.
CREATE INDEX nodd_wal_records_in_progress ON nodd_wal_records (ingest_run_id, dataset) WHERE status = 'in_progress';

-- Units in the order of lists and selections.
CREATE INDEX nodd_wal_records_by_selection ON nodd_wal_records (status, dataset, event_time, wal_id);

-- Chunks by radar and volume, to find the volume before, and a volume's newest chunk.
CREATE INDEX nodd_wal_records_by_volume ON nodd_wal_records (
    dataset, (extension ->> 'site'), time_range_start, (extension ->> 'chunk')
) WHERE extension ->> 'chunk' IS NOT NULL;

-- Alerts are evaluated every 15 seconds, and read only recently quarantined units.
CREATE INDEX nodd_wal_records_quarantined ON nodd_wal_records (updated_at) WHERE status = 'quarantined';

-- Failed units by code and dataset, newest first, without reading successes.
CREATE INDEX nodd_wal_records_failing ON nodd_wal_records (last_error_code, dataset, event_time, wal_id)
WHERE status IN ('failed', 'quarantined');

-- A public view (docs/sql-views.md): columns may be added, but not renamed or removed.
CREATE VIEW kfm_units AS
SELECT
    wal_id,
    dataset,
    object_uri,
    object_version,
    object_size,
    event_time,
    time_range_start,
    time_range_end,
    partition_key,
    status,
    attempts,
    last_attempt_at,
    next_attempt_at,
    last_error_code,
    last_error_message,
    -- The operator at which the unit left the chain, as in its evidence; governance refuses after metadata_extract.
    CASE
        WHEN status NOT IN ('failed', 'quarantined') THEN NULL
        WHEN last_error_code = 'governance_hard_fail' THEN 'metadata_extract'
        WHEN integrity_status = 'failed' THEN 'integrity_check'
        WHEN metadata_status = 'failed' THEN 'metadata_extract'
        WHEN stac_status = 'failed' THEN 'stac_register'
        WHEN provenance_status = 'failed' THEN 'provenance_emit'
    END AS operator,
    integrity_status,
    metadata_status,
    stac_status,
    provenance_status,
    stac_collection_id,
    stac_item_id,
    stac_item_href,
    ingest_run_id,
    replay_run_id,
    lane,
    created_at,
    updated_at
FROM nodd_wal_records;

-- Every change of a record, written only by the triggers below. No foreign key, because records are never deleted.
CREATE TABLE nodd_wal_transitions (
    wal_id @id NOT NULL,
    version integer NOT NULL,
    at @time NOT NULL,
    actor text NOT NULL,
    from_status text,
    to_status text NOT NULL,
    reason text NOT NULL,
    run_id text,
    attempts integer NOT NULL,
    -- The other mutable columns after the change; at version 1 every other column.
    fields @json NOT NULL,
    CONSTRAINT nodd_wal_transitions_one_row_per_version PRIMARY KEY (wal_id, version)
) @strict;

-- A record begins as pending, because any other status would lack its history (WSM-03).
@refuse(
    nodd_wal_records_begin_pending, INSERT ON nodd_wal_records, record_begins_pending: wal_id: status,
    NOT coalesce(
        NEW.status = 'pending' AND NEW.attempts = 0 AND NEW.version = 1 AND NEW.created_at = NEW.updated_at
        AND NEW.integrity_status = 'unknown' AND NEW.metadata_status = 'unknown'
        AND NEW.stac_status = 'unknown' AND NEW.provenance_status = 'unknown'
        AND NEW.last_attempt_at IS NULL AND NEW.last_error_code IS NULL AND NEW.last_error_message IS NULL
        AND NEW.stac_item_id IS NULL AND NEW.stac_collection_id IS NULL AND NEW.stac_item_href IS NULL
        AND NEW.replay_reason IS NULL, FALSE
    )
);

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger; a second record of a unit is refused before that.
@refuse(
    nodd_wal_records_unit_has_one_record, INSERT ON nodd_wal_records, unit_has_one_record: wal_id: status,
    EXISTS (
        SELECT 1 FROM nodd_wal_records AS r
        WHERE
            r.object_uri = NEW.object_uri AND r.dataset = NEW.dataset AND r.time_range_start = NEW.time_range_start
            AND coalesce('=' || r.object_version, '') = coalesce('=' || NEW.object_version, '')
            AND r.wal_id <> NEW.wal_id
    )
);

-- Optimistic concurrency: a writer that saw an older version is refused.
@refuse(
    nodd_wal_records_version_rises_by_one, UPDATE ON nodd_wal_records, version_rises_by_one: wal_id: status,
    NEW.version IS DISTINCT FROM OLD.version + 1
);

-- The history never goes back in time; a writer whose clock is behind keeps the stored time.
@refuse(
    nodd_wal_records_time_goes_on, UPDATE ON nodd_wal_records, time_goes_on: wal_id: status,
    NEW.updated_at < OLD.updated_at
);

-- `attempts` counts only claims (WAL-09).
@refuse(
    nodd_wal_records_attempts_count_claims, UPDATE ON nodd_wal_records, attempts_count_claims: wal_id: status,
    NEW.attempts IS DISTINCT FROM OLD.attempts + CASE WHEN NEW.status = 'in_progress' THEN 1 ELSE 0 END
);

-- Only a claim sets the time of the last attempt (WSM-04).
@refuse(
    nodd_wal_records_claim_is_stamped, UPDATE ON nodd_wal_records, claim_is_stamped: wal_id: status,
    NEW.last_attempt_at
    IS DISTINCT FROM CASE WHEN NEW.status = 'in_progress' THEN NEW.updated_at ELSE OLD.last_attempt_at END
);

-- A return to pending needs a reason (WSM-07).
@refuse(
    nodd_wal_records_replay_has_reason, UPDATE ON nodd_wal_records, replay_has_reason: wal_id: status,
    NEW.status = 'pending' AND NEW.replay_reason IS NULL
);

-- sqlite: foreign keys are switched on per connection; without them any text would be accepted as a reason.
@refuse(
    nodd_wal_records_reasons_are_looked_up, UPDATE ON nodd_wal_records, foreign_keys_are_on,
    @changed(replay_reason) AND NOT (SELECT p.foreign_keys FROM pragma_foreign_keys AS p)
);

-- A deleted record would have no status, and nothing would explain its history.
@refuse(nodd_wal_records_are_kept, DELETE ON nodd_wal_records, records_are_kept: wal_id: status);
@not_truncated(nodd_wal_records, records_are_kept);

-- Every update is one of these transitions; any other ordered pair of states is illegal (WSM-02). quarantined > pending
-- and succeeded > pending need a decision in the governance log for exactly this version (WSM-16).
@refuse(
    nodd_wal_records_transition_is_legal, UPDATE ON nodd_wal_records, illegal_transition: wal_id: status,
    NOT coalesce(
        OLD.status || '>' || NEW.status IN (
            'pending>in_progress', 'in_progress>succeeded', 'in_progress>failed', 'failed>pending',
            'pending>quarantined', 'failed>quarantined'
        ), FALSE
    ),
    NOT coalesce(
        OLD.status IN ('quarantined', 'succeeded') AND NEW.status = 'pending' AND EXISTS (
            SELECT 1 FROM governance_log AS g
            WHERE
                g.wal_id = NEW.wal_id AND g.record_version = NEW.version
                AND g.from_status = OLD.status AND g.to_status = NEW.status
        ), FALSE
    )
);

-- The history is written with the change.
-- postgresql: set-based, one INSERT for the whole statement that changed the records.
CREATE FUNCTION nodd_wal_write_first_history() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    SELECT
        n.wal_id, n.version, n.updated_at, n.changed_by, NULL, n.status, n.change_reason, n.ingest_run_id, n.attempts,
        jsonb_build_object(@pairs(
            n, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, created_at,
            object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id,
            sns_message_id, topic_arn, subject, extension, last_attempt_at, last_error_code, last_error_message,
            integrity_status, metadata_status, stac_status, provenance_status, stac_item_id, stac_collection_id,
            stac_item_href, worker_id, replay_reason, next_attempt_at, lane, replay_run_id,
            batch_limit
        ))
    FROM new_rows AS n;
    RETURN NULL;
END
$$;

-- postgresql: its triggers call a function, the function above.
CREATE TRIGGER nodd_wal_records_write_first_history AFTER INSERT ON nodd_wal_records
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_write_first_history();

-- postgresql: set-based, too. A nested loop over both transition tables would take quadratic time.
CREATE FUNCTION nodd_wal_write_history() RETURNS trigger LANGUAGE plpgsql
SET enable_nestloop = off SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    SELECT
        n.wal_id, n.version, n.updated_at, n.changed_by, o.status, n.status, n.change_reason, n.ingest_run_id,
        n.attempts,
        jsonb_build_object(@pairs(
            n, last_attempt_at, last_error_code, last_error_message, integrity_status, metadata_status, stac_status,
            provenance_status, stac_item_id, stac_collection_id, stac_item_href, worker_id, replay_reason,
            next_attempt_at, lane, replay_run_id, batch_limit
        ))
    FROM new_rows AS n INNER JOIN old_rows AS o ON n.wal_id = o.wal_id;
    RETURN NULL;
END
$$;

-- postgresql: its triggers call a function, the function above.
CREATE TRIGGER nodd_wal_records_write_history AFTER UPDATE ON nodd_wal_records
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_write_history();

-- sqlite: it has only row triggers.
CREATE TRIGGER nodd_wal_records_write_first_history AFTER INSERT ON nodd_wal_records
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    VALUES (
        NEW.wal_id, NEW.version, NEW.updated_at, NEW.changed_by, NULL, NEW.status, NEW.change_reason,
        NEW.ingest_run_id, NEW.attempts,
        json_object(@pairs(
            NEW, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, created_at,
            object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id,
            sns_message_id, topic_arn, subject, last_attempt_at, last_error_code, last_error_message,
            integrity_status, metadata_status, stac_status, provenance_status, stac_item_id, stac_collection_id,
            stac_item_href, worker_id, replay_reason, next_attempt_at, lane, replay_run_id,
            batch_limit
        ), 'extension', json(NEW.extension))
    );
END;

-- sqlite: it has only row triggers.
CREATE TRIGGER nodd_wal_records_write_history AFTER UPDATE ON nodd_wal_records
BEGIN
    INSERT INTO nodd_wal_transitions (
        wal_id, version, at, actor, from_status, to_status, reason, run_id, attempts, fields
    )
    VALUES (
        NEW.wal_id, NEW.version, NEW.updated_at, NEW.changed_by, OLD.status, NEW.status, NEW.change_reason,
        NEW.ingest_run_id, NEW.attempts,
        json_object(@pairs(
            NEW, last_attempt_at, last_error_code, last_error_message, integrity_status, metadata_status, stac_status,
            provenance_status, stac_item_id, stac_collection_id, stac_item_href, worker_id, replay_reason,
            next_attempt_at, lane, replay_run_id, batch_limit
        ))
    );
END;

-- Totals for metrics: transitions by status (WAL-12), outcomes of attempts and messages, energy (telemetry/totals.py).
-- Written in the transaction of the counted change, so that no count is lost, and read without reading counted rows.
CREATE TABLE metric_totals (
    metric @id NOT NULL,
    -- The dataset or node that the total is about; '' for the deployment.
    subject @id NOT NULL,
    -- A status, an error code, a class of seconds; '' if the metric has no label. For nodd_wal_moves the new status,
    -- followed by the reason of a return to pending, or by the attempt of a claim.
    label @id NOT NULL,
    amount @real NOT NULL,
    CONSTRAINT metric_totals_something_happened CHECK (amount > 0),
    -- Unbounded labels would create a time series for every text.
    CONSTRAINT metric_totals_names_are_bounded
    CHECK (length(metric) BETWEEN 1 AND 60 AND length(subject) <= 320 AND length(label) <= 100)
    -- SQLite has one writer, so counts are added to a single row; PostgreSQL has several rows, see below.
    @sqlite(, CONSTRAINT metric_totals_one_row UNIQUE (metric, subject, label))
) @strict;

-- postgresql: only the trigger below, at depth 1, deletes rows, and keeps their sum.
CREATE TRIGGER metric_totals_only_rise BEFORE UPDATE OR DELETE ON metric_totals
FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION kfm_refuse('totals_only_rise');

-- sqlite: its writer adds to the row.
@refuse(
    metric_totals_only_rise, UPDATE ON metric_totals, totals_only_rise,
    @changed(metric, subject, label) OR NEW.amount < OLD.amount
    OR (OLD.metric = 'nodd_wal_moves' AND NEW.amount <> OLD.amount + 1)
);

-- sqlite: no row is deleted. On PostgreSQL, the trigger that adds rows up deletes the added rows.
@refuse(metric_totals_are_kept, DELETE ON metric_totals, totals_only_rise);
@not_truncated(metric_totals, totals_only_rise);

-- postgresql: a person's statement is at trigger depth 0; only the triggers of the records count their transitions.
CREATE TRIGGER metric_totals_moves_are_the_ledgers BEFORE INSERT ON metric_totals
FOR EACH ROW WHEN (pg_trigger_depth() = 0 AND NEW.metric = 'nodd_wal_moves')
EXECUTE FUNCTION kfm_refuse('moves_are_counted_by_the_ledger');

-- postgresql: each statement adds rows of its own, because writers to the same row would wait for each other. A random
-- sixteenth of the statements adds the rows up, except for rows that another statement is adding up. The choice is
-- random, so that no rhythm of the writers prevents it.
CREATE FUNCTION metric_totals_add_up() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    WITH part AS (
        DELETE FROM metric_totals
        WHERE ctid IN (SELECT t.ctid FROM metric_totals AS t FOR UPDATE SKIP LOCKED)
        RETURNING metric, subject, label, amount
    )
    INSERT INTO metric_totals (metric, subject, label, amount)
    SELECT metric, subject, label, sum(amount) FROM part GROUP BY 1, 2, 3;
    RETURN NULL;
END
$$;

-- postgresql: its triggers call a function, the function above.
CREATE TRIGGER metric_totals_are_added_up AFTER INSERT ON metric_totals
FOR EACH STATEMENT WHEN (random() < 1.0 / 16)
EXECUTE FUNCTION metric_totals_add_up();

-- postgresql: set-based, like the history.
CREATE FUNCTION nodd_wal_count_moves() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO metric_totals (metric, subject, label, amount)
    SELECT
        'nodd_wal_moves', n.dataset, n.status || CASE n.status
            WHEN 'pending' THEN ' ' || coalesce(n.replay_reason, '') WHEN 'in_progress' THEN ' ' || n.attempts ELSE ''
        END, count(*)
    FROM new_rows AS n
    GROUP BY 1, 2, 3;
    RETURN NULL;
END
$$;

-- postgresql: its triggers call a function, the function above.
CREATE TRIGGER nodd_wal_records_count_new AFTER INSERT ON nodd_wal_records
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_count_moves();

-- postgresql: its triggers call a function, the function above.
CREATE TRIGGER nodd_wal_records_count_moves AFTER UPDATE ON nodd_wal_records
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_count_moves();

-- sqlite: it has only row triggers.
CREATE TRIGGER nodd_wal_records_count_new AFTER INSERT ON nodd_wal_records
BEGIN
    INSERT INTO metric_totals (metric, subject, label, amount)
    VALUES ('nodd_wal_moves', NEW.dataset, NEW.status || ' ', 1)
    ON CONFLICT DO UPDATE SET amount = amount + 1;
END;

-- sqlite: it has only row triggers.
CREATE TRIGGER nodd_wal_records_count_moves AFTER UPDATE ON nodd_wal_records
BEGIN
    INSERT INTO metric_totals (metric, subject, label, amount)
    VALUES (
        'nodd_wal_moves', NEW.dataset, NEW.status || CASE NEW.status
            WHEN 'pending' THEN ' ' || coalesce(NEW.replay_reason, '') WHEN 'in_progress' THEN ' ' || NEW.attempts ELSE ''
        END, 1
    )
    ON CONFLICT DO UPDATE SET amount = amount + 1;
END;

-- To keep claims cheap, the next two triggers run only for an update that names one of the columns that they compare.
-- No trigger of the table changes NEW, so a column that is not named keeps its value.

-- Sub-statuses are the operators' results; they change only with the end of an attempt (WAL-07).
@refuse(
    nodd_wal_records_findings_end_an_attempt,
    UPDATE OF (
        integrity_status, metadata_status, stac_status, provenance_status, stac_item_id, stac_collection_id,
        stac_item_href
    ) ON nodd_wal_records,
    findings_end_an_attempt: wal_id: status,
    OLD.status <> 'in_progress' AND @changed(
        integrity_status, metadata_status, stac_status, provenance_status, stac_item_id, stac_collection_id,
        stac_item_href
    )
);

-- A unit's identity never changes; a rewritten object is another unit (WAL-04).
@refuse(
    nodd_wal_records_identity_is_immutable,
    UPDATE OF (
        wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, created_at,
        object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
        topic_arn, subject, extension
    ) ON nodd_wal_records,
    identity_is_immutable: wal_id: status,
    @changed(
        wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, created_at,
        object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
        topic_arn, subject, extension
    )
);

-- An unbounded text would let one sender fill the ledger.
@refuse(
    nodd_wal_records_texts_are_bounded, INSERT ON nodd_wal_records, nodd_wal_records_texts_are_bounded,
    length(NEW.dataset) > 320 OR length(NEW.provider) > 320 OR length(NEW.queue) > 320
    OR length(NEW.schema_version) > 320 OR length(NEW.object_version) > 320 OR length(NEW.sequencer) > 320
    OR length(NEW.sqs_message_id) > 320 OR length(NEW.sns_message_id) > 320 OR length(NEW.topic_arn) > 320
    OR length(NEW.subject) > 320 OR length(NEW.object_uri) > 1400
);

-- postgresql: a person's statement is at depth 0, the triggers above write at depth 1; the check costs nothing per row.
CREATE TRIGGER nodd_wal_transitions_are_written_by_the_ledger BEFORE INSERT ON nodd_wal_transitions
FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION kfm_refuse('history_is_written_by_the_ledger');

-- sqlite: it has no trigger depth, so a row is accepted only if the record has that version and the history has no row
-- of it yet. This also prevents INSERT OR REPLACE, which deletes rows without a DELETE trigger.
@refuse(
    nodd_wal_transitions_are_written_by_the_ledger, INSERT ON nodd_wal_transitions, history_is_written_by_the_ledger,
    EXISTS (SELECT 1 FROM nodd_wal_transitions AS t WHERE t.wal_id = NEW.wal_id AND t.version = NEW.version)
    OR NOT EXISTS (SELECT 1 FROM nodd_wal_records AS r WHERE r.wal_id = NEW.wal_id AND r.version = NEW.version)
);

@append_only(nodd_wal_transitions, history_is_append_only);

-- Received messages and their states.
CREATE TABLE nodd_wal_deliveries (
    message_id @id NOT NULL,
    queue text NOT NULL,
    -- The newest handle, because with an older handle SQS may accept a deletion without deleting the message.
    receipt_handle text NOT NULL,
    receive_count integer NOT NULL,
    first_received_at @time NOT NULL,
    received_at @time NOT NULL,
    landing_sha256 text NOT NULL,
    sns_message_id text,
    topic_arn text,
    state text NOT NULL,
    settled_at @time,
    -- Result of the signature check at the receive; a replay from the landing zone does not check again.
    signature text,
    CONSTRAINT nodd_wal_deliveries_one_row_per_message PRIMARY KEY (message_id),
    -- A message in an unknown state would not be counted (BEY-03).
    CONSTRAINT nodd_wal_deliveries_state_is_known
    CHECK (state IN ('in_flight', 'rejected', 'ignored', 'deleted', 'dead_lettered')),
    CONSTRAINT nodd_wal_deliveries_receives_are_counted CHECK (receive_count >= 1),
    -- State and time must agree on whether a message has left the queue.
    CONSTRAINT nodd_wal_deliveries_settled_has_time
    CHECK ((state IN ('deleted', 'dead_lettered')) = (settled_at IS NOT NULL)),
    CONSTRAINT nodd_wal_deliveries_signature_is_known CHECK (signature IN ('verified', 'invalid', 'unchecked'))
) @strict;

-- Few messages are on the queue; the number of messages that have left the queue grows forever.
CREATE INDEX nodd_wal_deliveries_by_open_state ON nodd_wal_deliveries (state) WHERE state IN ('in_flight', 'ignored');

@refuse(
    nodd_wal_deliveries_texts_are_bounded, INSERT ON nodd_wal_deliveries, nodd_wal_deliveries_texts_are_bounded,
    length(NEW.message_id) > 320 OR length(NEW.queue) > 320 OR length(NEW.landing_sha256) > 320
    OR length(NEW.sns_message_id) > 320 OR length(NEW.topic_arn) > 320 OR length(NEW.receipt_handle) > 4096
);

-- A message without its row would be missing in every balance (BEY-03).
@kept(nodd_wal_deliveries, deliveries_are_kept);

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger. AFTER, because an upsert of an existing row fires
-- BEFORE INSERT, but not AFTER INSERT; a new row that already has units or rejections has replaced an old row.
CREATE TRIGGER nodd_wal_deliveries_are_not_replaced AFTER INSERT ON nodd_wal_deliveries
WHEN
    EXISTS (SELECT 1 FROM nodd_wal_delivery_units AS u WHERE u.message_id = NEW.message_id)
    OR EXISTS (SELECT 1 FROM rejected_messages AS r WHERE r.message_id = NEW.message_id)
BEGIN
    SELECT RAISE(ABORT, 'deliveries_are_kept');
END;

-- A message's first receive, its topic and its landed batch never change, because evidence and retention look for its
-- bytes there; its number of receives never falls. No update changes whether a message is verified: the first receive
-- decides that, and later receives of a verified message are not checked.
@refuse(
    nodd_wal_deliveries_identity_is_immutable, UPDATE ON nodd_wal_deliveries, deliveries_identity_is_immutable,
    NEW.receive_count < OLD.receive_count
    OR @changed(message_id, first_received_at, landing_sha256, sns_message_id, topic_arn)
    OR (@changed(signature) AND 'verified' IN (OLD.signature, NEW.signature))
);

-- The units of each message. No foreign key to the records, because conservation must find units without a record.
CREATE TABLE nodd_wal_delivery_units (
    message_id @id NOT NULL,
    wal_id @id NOT NULL,
    CONSTRAINT nodd_wal_delivery_units_one_row_per_pair PRIMARY KEY (message_id, wal_id),
    CONSTRAINT nodd_wal_delivery_units_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id)
) @without_rowid;

CREATE INDEX nodd_wal_delivery_units_by_unit ON nodd_wal_delivery_units (wal_id);

-- If a unit were removed from its message, the message could be deleted from the queue before that unit has ended.
@append_only(nodd_wal_delivery_units, delivery_units_are_append_only);

-- Rejected entries of messages, with the reason, for a person. They cost little, whatever a sender writes, because the
-- body is only in the landed batch, the rows of a message are few, and every text has a bound (SEC-08).
CREATE TABLE rejected_messages (
    message_id @id NOT NULL,
    record_index integer NOT NULL,
    reason_code text NOT NULL,
    detail text NOT NULL,
    -- Number of entries of the message rejected for the same reason; record_index is the first of them.
    records integer NOT NULL,
    received_at @time NOT NULL,
    CONSTRAINT rejected_messages_one_row_per_record PRIMARY KEY (message_id, record_index),
    CONSTRAINT rejected_messages_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    CONSTRAINT rejected_messages_reason_is_short CHECK (length(reason_code) BETWEEN 1 AND 60),
    CONSTRAINT rejected_messages_detail_is_bounded CHECK (length(detail) <= 500),
    CONSTRAINT rejected_messages_records_are_counted CHECK (records >= 1)
) @strict;

-- Rejections are kept unchanged, because a sender may dispute them.
@append_only(rejected_messages, rejections_are_append_only, (message_id, record_index));

-- Ignored entries of messages: readable, but without a unit, each with its reason (OPR-19).
CREATE TABLE ignored_records (
    message_id @id NOT NULL,
    record_index integer NOT NULL,
    reason text NOT NULL,
    -- NULL if no single dataset applies, as for a test event, or an object of a bucket that several datasets share.
    dataset text,
    bucket text,
    -- NULL for an entry without an object, and for a row that counts the entries beyond a message's bound.
    object_key text,
    records integer NOT NULL,
    received_at @time NOT NULL,
    -- A message that is received again has the same entries.
    CONSTRAINT ignored_records_one_row_per_record PRIMARY KEY (message_id, record_index),
    CONSTRAINT ignored_records_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    CONSTRAINT ignored_records_index_counts_from_zero CHECK (record_index >= 0),
    CONSTRAINT ignored_records_reason_is_short CHECK (length(reason) BETWEEN 1 AND 60),
    -- S3's bounds of both names, in characters.
    CONSTRAINT ignored_records_names_are_bounded CHECK (length(bucket) <= 255 AND length(object_key) <= 1024),
    -- A row that counts several entries names no object.
    CONSTRAINT ignored_records_are_counted CHECK (records >= 1 AND (records = 1 OR object_key IS NULL))
) @strict;

CREATE INDEX ignored_records_by_time ON ignored_records (received_at);

@append_only(ignored_records, ignored_records_are_kept, (message_id, record_index));

-- Recovery and governance: the governance log, kill switches, leases, the order of a key's versions, outcomes.

-- The decisions of persons and replays on records: who decided what, when and why (SEC-02).
CREATE TABLE governance_log (
    entry_id @serial(governance_log_one_row_per_entry),
    at @time NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    dataset text,
    wal_id @id,
    -- The version that the decision gives the record, and the change of status that it allows or explains.
    record_version integer,
    from_status text,
    to_status text,
    reason text NOT NULL,
    change_ref text,
    details @json NOT NULL,
    -- The proposal that a second person decided on; for a reviewed override, also who approved it.
    proposal_id @bigint,
    approved_by text,
    -- A decision without its change would allow that change unseen at any later time, so both commit together.
    CONSTRAINT governance_log_decision_was_carried_out
    FOREIGN KEY (wal_id, record_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    -- A decision without actor or reason could not be audited.
    CONSTRAINT governance_log_entry_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT governance_log_action_is_a_word CHECK (
        length(action) BETWEEN 1 AND 40 AND @word(action)
    ),
    -- An empty or unbounded reference could not be looked up.
    CONSTRAINT governance_log_change_ref_is_bounded CHECK (length(change_ref) BETWEEN 1 AND 200),
    -- Half a change of status would match no transition.
    CONSTRAINT governance_log_change_is_whole CHECK (
        (record_version IS NULL) = (from_status IS NULL) AND (record_version IS NULL) = (to_status IS NULL)
        AND (record_version IS NULL OR wal_id IS NOT NULL)
    ),
    -- A unit leaves a terminal state only by a change that can be looked up (WSM-16).
    CONSTRAINT governance_log_override_has_change_ref
    CHECK (coalesce(from_status NOT IN ('succeeded', 'quarantined'), TRUE) OR change_ref IS NOT NULL),
    CONSTRAINT governance_log_details_are_object CHECK (@json_type(details) = 'object'),
    -- An approver is valid only with a proposal and a record's version, which the approval is about.
    CONSTRAINT governance_log_approval_is_whole
    CHECK (approved_by IS NULL OR (proposal_id IS NOT NULL AND record_version IS NOT NULL)),
    -- A decision on a proposal that does not exist would decide nothing.
    CONSTRAINT governance_log_proposal_is_known FOREIGN KEY (proposal_id) REFERENCES governance_log (entry_id)
) @strict;

CREATE UNIQUE INDEX governance_log_by_decision ON governance_log (wal_id, record_version)
WHERE record_version IS NOT NULL;

CREATE INDEX governance_log_by_action ON governance_log (action, entry_id);

-- The decisions on a unit.
CREATE INDEX governance_log_by_unit ON governance_log (wal_id, entry_id) WHERE wal_id IS NOT NULL;

-- A proposal is approved or withdrawn once.
CREATE UNIQUE INDEX governance_log_by_proposal ON governance_log (proposal_id)
WHERE proposal_id IS NOT NULL AND record_version IS NULL;

@append_only(governance_log, governance_log_is_append_only, (entry_id), (wal_id, record_version));

-- sqlite: foreign keys are switched on per connection; without them a decision could be stored without its change.
@refuse(
    governance_log_decisions_are_looked_up, INSERT ON governance_log, foreign_keys_are_on,
    NOT (SELECT p.foreign_keys FROM pragma_foreign_keys AS p)
);

-- Units of an entry `override_proposed` of the governance log, at the versions that the proposer saw.
CREATE TABLE override_units (
    proposal_id @bigint NOT NULL,
    wal_id @id NOT NULL,
    version integer NOT NULL,
    action text NOT NULL,
    CONSTRAINT override_units_one_row_per_unit PRIMARY KEY (proposal_id, wal_id),
    CONSTRAINT override_units_version_is_known
    FOREIGN KEY (wal_id, version) REFERENCES nodd_wal_transitions (wal_id, version)
) @strict;

-- The approvals of one unit.
CREATE INDEX override_units_by_unit ON override_units (wal_id, version);

@append_only(override_units, override_units_are_kept, (proposal_id, wal_id));

-- No unit is added to a proposal after its decision, so that an approval covers only units proposed before it.
@refuse(
    override_units_are_of_an_open_proposal, INSERT ON override_units, override_units_are_of_an_open_proposal,
    NOT EXISTS (
        SELECT 1 FROM governance_log AS p WHERE p.entry_id = NEW.proposal_id AND p.action = 'override_proposed'
    )
    OR EXISTS (
        SELECT 1 FROM governance_log AS d WHERE d.proposal_id = NEW.proposal_id AND d.record_version IS NULL
    )
);

-- A decision is on a proposal; an approval is by another person, within a week: later the reason may not hold any more.
@refuse(
    governance_log_decides_on_a_proposal, INSERT ON governance_log, decision_is_on_a_proposal,
    NEW.action IN ('override_approved', 'override_withdrawn'),
    NOT EXISTS (
        SELECT 1 FROM governance_log AS p
        WHERE
            p.entry_id = NEW.proposal_id AND p.action = 'override_proposed' AND (
                NEW.action = 'override_withdrawn'
                OR (lower(trim(p.actor)) <> lower(trim(NEW.actor)) AND p.at > @days_before(NEW.at, 7))
            )
    )
);

-- If an override names an approver, this person has approved this unit, at this version, for this action.
@refuse(
    governance_log_approval_was_given, INSERT ON governance_log, approval_was_given,
    NEW.approved_by IS NOT NULL,
    NOT EXISTS (
        SELECT 1 FROM override_units AS u
        INNER JOIN governance_log AS p ON u.proposal_id = p.entry_id
        INNER JOIN governance_log AS a
            ON u.proposal_id = a.proposal_id AND a.record_version IS NULL AND a.action = 'override_approved'
        WHERE
            u.proposal_id = NEW.proposal_id AND u.wal_id = NEW.wal_id AND u.version = NEW.record_version - 1
            AND u.action = NEW.action AND p.actor = NEW.actor AND a.actor = NEW.approved_by
    )
);

-- In prod, only two persons together take a unit out of a terminal state (WSM-21). A run that is started in the Dagster
-- UI needs an approval in every environment, because the UI does not ask for a name (SEC-10).
@refuse(
    nodd_wal_records_override_is_reviewed, UPDATE ON nodd_wal_records, override_is_reviewed: wal_id: status,
    OLD.status IN ('quarantined', 'succeeded') AND NEW.status = 'pending',
    (
        EXISTS (SELECT 1 FROM deployment AS e WHERE e.fact = 'environment' AND e.value = 'prod')
        OR EXISTS (
            SELECT 1 FROM governance_log AS d
            WHERE d.wal_id = NEW.wal_id AND d.record_version = NEW.version AND lower(trim(d.actor)) = 'dagster-ui'
        )
    )
    AND NOT EXISTS (
        SELECT 1 FROM governance_log AS g
        WHERE g.wal_id = NEW.wal_id AND g.record_version = NEW.version AND g.approved_by IS NOT NULL
    )
);

-- Datasets that are switched off: their units are not claimed, replayed or written (WAL-10).
CREATE TABLE kill_switches (
    switch_id @serial(kill_switches_one_row_per_switch),
    -- A dataset id, or * for every dataset.
    dataset text NOT NULL,
    engaged_at @time NOT NULL,
    engaged_by text NOT NULL,
    reason text NOT NULL,
    change_ref text,
    expires_at @time,
    released_at @time,
    released_by text,
    release_reason text,
    CONSTRAINT kill_switches_is_attributed
    CHECK (length(engaged_by) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    -- A switch that expires before it begins would look like a release.
    CONSTRAINT kill_switches_expires_later CHECK (expires_at > engaged_at),
    -- A release without its time, person or reason could not be audited.
    CONSTRAINT kill_switches_release_is_attributed CHECK (
        (released_at IS NULL) = (released_by IS NULL) AND (released_at IS NULL) = (release_reason IS NULL)
    )
) @strict;

-- Two open switches of a dataset could not be distinguished when one is released.
CREATE UNIQUE INDEX kill_switches_one_open_per_dataset ON kill_switches (dataset) WHERE released_at IS NULL;

@refuse(
    kill_switches_only_close, UPDATE ON kill_switches, kill_switches_only_close,
    OLD.released_at IS NOT NULL OR NEW.released_at IS NULL
    OR @changed(switch_id, dataset, engaged_at, engaged_by, reason, change_ref, expires_at)
);
@kept(kill_switches, kill_switches_are_kept);

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger.
@refuse(
    kill_switches_are_not_replaced, INSERT ON kill_switches, kill_switches_one_open_per_dataset,
    EXISTS (
        SELECT 1 FROM kill_switches AS r
        WHERE r.switch_id = NEW.switch_id OR (r.dataset = NEW.dataset AND r.released_at IS NULL)
    )
);

-- Runs that hold claims, and until when: one row per run and dataset, so that a heartbeat is a single update.
CREATE TABLE nodd_wal_leases (
    ingest_run_id text NOT NULL,
    dataset text NOT NULL,
    worker_id text NOT NULL,
    acquired_at @time NOT NULL,
    renewed_at @time NOT NULL,
    expires_at @time NOT NULL,
    CONSTRAINT nodd_wal_leases_one_row_per_holder PRIMARY KEY (ingest_run_id, dataset),
    -- A lease that has expired when it is written would be revoked from a living worker.
    CONSTRAINT nodd_wal_leases_lasts CHECK (expires_at > renewed_at)
) @strict;

CREATE INDEX nodd_wal_leases_by_expiry ON nodd_wal_leases (expires_at);

-- A lease begins, and is renewed, only while its worker holds a claim. It is deleted only when no claim is left.
@refuse(
    nodd_wal_leases_begin_with_a_claim, INSERT ON nodd_wal_leases, leases_are_of_claims,
    NOT EXISTS (
        SELECT 1 FROM nodd_wal_records AS r
        WHERE
            r.status = 'in_progress' AND r.ingest_run_id = NEW.ingest_run_id AND r.dataset = NEW.dataset
            AND r.worker_id = NEW.worker_id
    )
);
@refuse(
    nodd_wal_leases_go_on_with_a_claim, UPDATE ON nodd_wal_leases, leases_are_of_claims,
    @changed(ingest_run_id, dataset, acquired_at)
    OR NOT EXISTS (
        SELECT 1 FROM nodd_wal_records AS r
        WHERE
            r.status = 'in_progress' AND r.ingest_run_id = NEW.ingest_run_id AND r.dataset = NEW.dataset
            AND r.worker_id = NEW.worker_id
    )
);
@refuse(
    nodd_wal_leases_end_without_claims, DELETE ON nodd_wal_leases, leases_are_of_claims,
    EXISTS (
        SELECT 1 FROM nodd_wal_records AS r
        WHERE r.status = 'in_progress' AND r.ingest_run_id = OLD.ingest_run_id AND r.dataset = OLD.dataset
    )
);
@not_truncated(nodd_wal_leases, leases_are_of_claims);

-- Sizes of a product's newest announced objects, by the objects' month; the next object's size is compared with them
-- (ADR 030). A row is small, and is rewritten until its month ends.
CREATE TABLE size_peers (
    dataset @id NOT NULL,
    -- The groups of the key that identify the product, `name=value`.
    product @id NOT NULL,
    month text NOT NULL,
    -- In bytes, in the order of their admission.
    sizes @json NOT NULL,
    CONSTRAINT size_peers_one_row_per_product_and_month PRIMARY KEY (dataset, product, month),
    -- A row without a bound would be rewritten in full, ever longer, for each object.
    CONSTRAINT size_peers_are_recent
    CHECK (CASE WHEN @json_type(sizes) = 'array' THEN @json_size(sizes) BETWEEN 1 AND 24 ELSE FALSE END)
) @without_rowid;

-- postgresql: leaves room for a row's next version on its page, so that the index is not written again.
ALTER TABLE size_peers SET (fillfactor = 70);

-- Followed products of a feed, each with the start of its first announced object, and the hour until which it was
-- checked. Gaps of other products are not detected (BEY-05).
CREATE TABLE nodd_feeds (
    dataset @id NOT NULL,
    -- The product's name in the contract's coverage.
    product @id NOT NULL,
    -- Start of the first announced object; if it was announced late, the last hour that had settled by then.
    followed_since @time NOT NULL,
    looked_until @time,
    CONSTRAINT nodd_feeds_one_row_per_product PRIMARY KEY (dataset, product)
) @without_rowid;

-- Days whose bucket was listed to its end. Every object of such a day is expected, even if the feed was not followed.
CREATE TABLE nodd_listed_days (
    dataset @id NOT NULL,
    day text NOT NULL,
    listed_at @time NOT NULL,
    CONSTRAINT nodd_listed_days_one_row_per_day PRIMARY KEY (dataset, day),
    CONSTRAINT nodd_listed_days_day_is_a_day CHECK (@is_day(day))
) @without_rowid;

-- Open and closed gaps of feeds, derived from the ledger.
CREATE TABLE nodd_gaps (
    dataset @id NOT NULL,
    product @id NOT NULL,
    -- The incomplete hour; for a silence or a drop, the hour of its detection.
    hour @time NOT NULL,
    kind text NOT NULL,
    expected integer NOT NULL,
    seen integer NOT NULL,
    first_seen @time NOT NULL,
    closed_at @time,
    -- The run that ingested the missing objects, if any.
    repaired_by text,
    CONSTRAINT nodd_gaps_one_row_per_hour PRIMARY KEY (dataset, product, hour, kind),
    CONSTRAINT nodd_gaps_kind_is_known CHECK (kind IN ('silence', 'drop', 'hole')),
    CONSTRAINT nodd_gaps_are_counted CHECK (expected >= 1 AND seen >= 0),
    -- An hour without a missing object is not a gap.
    CONSTRAINT nodd_gaps_open_lacks_something CHECK (closed_at IS NOT NULL OR seen < expected),
    CONSTRAINT nodd_gaps_close_after_they_open CHECK (closed_at >= first_seen),
    CONSTRAINT nodd_gaps_repaired_are_closed CHECK (repaired_by IS NULL OR closed_at IS NOT NULL)
) @strict;

CREATE INDEX nodd_gaps_open ON nodd_gaps (dataset, kind, hour) WHERE closed_at IS NULL;

-- A product has at most one open silence and one open drop.
CREATE UNIQUE INDEX nodd_gaps_one_at_a_time ON nodd_gaps (dataset, product, kind)
WHERE closed_at IS NULL AND kind <> 'hole';

-- A public view (docs/sql-views.md).
CREATE VIEW kfm_gaps AS
SELECT dataset, product, hour, kind, expected, seen, first_seen, closed_at, repaired_by FROM nodd_gaps;

-- Arrival times of a day's objects (from the start of scan or run to the announcement), counted in classes, so that
-- percentiles over months need not read the ledger.
CREATE TABLE nodd_arrivals (
    dataset @id NOT NULL,
    product @id NOT NULL,
    day text NOT NULL,
    objects integer NOT NULL,
    -- Number of objects by class of seconds.
    classes @json NOT NULL,
    -- These counts by lead of a forecast; a separate column, because it is fifty times as long.
    leads @json NOT NULL,
    CONSTRAINT nodd_arrivals_one_row_per_day PRIMARY KEY (dataset, product, day),
    CONSTRAINT nodd_arrivals_day_is_a_day CHECK (@is_day(day)),
    CONSTRAINT nodd_arrivals_are_counted CHECK (objects >= 1),
    CONSTRAINT nodd_arrivals_classes_is_object CHECK (@json_type(classes) = 'object'),
    CONSTRAINT nodd_arrivals_leads_is_object CHECK (@json_type(leads) = 'object')
) @without_rowid;

-- Versions that a newer version of their object made obsolete (BEY-01); at most one row for each older version.
CREATE TABLE nodd_wal_supersessions (
    older_wal_id @id NOT NULL,
    newer_wal_id @id NOT NULL,
    found_at @time NOT NULL,
    CONSTRAINT nodd_wal_supersessions_one_successor PRIMARY KEY (older_wal_id),
    CONSTRAINT nodd_wal_supersessions_older_is_known
    FOREIGN KEY (older_wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT nodd_wal_supersessions_newer_is_known
    FOREIGN KEY (newer_wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT nodd_wal_supersessions_of_another_unit CHECK (older_wal_id <> newer_wal_id)
) @strict;

CREATE INDEX nodd_wal_supersessions_by_newer ON nodd_wal_supersessions (newer_wal_id);

@append_only(nodd_wal_supersessions, supersessions_are_append_only, (older_wal_id));

-- The result of each success, with which a later success of the same unit is compared (WAL-11).
CREATE TABLE nodd_wal_outcomes (
    wal_id @id NOT NULL,
    attempt integer NOT NULL,
    at @time NOT NULL,
    run_id text NOT NULL,
    replay_run_id text,
    item_sha256 text,
    provenance_sha256 text,
    code_version text NOT NULL,
    -- The current Item is that of a newer unit, so the Item's hash does not describe this unit.
    superseded @bool NOT NULL,
    -- The previous success, if its result differs. An approved repair may differ; any other difference is a defect.
    differs_from integer,
    permitted @bool,
    CONSTRAINT nodd_wal_outcomes_one_row_per_attempt PRIMARY KEY (wal_id, attempt),
    CONSTRAINT nodd_wal_outcomes_record_is_known FOREIGN KEY (wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT nodd_wal_outcomes_earlier_outcome_is_known
    FOREIGN KEY (wal_id, differs_from) REFERENCES nodd_wal_outcomes (wal_id, attempt),
    -- A difference that is neither permitted nor a defect would not be listed.
    CONSTRAINT nodd_wal_outcomes_difference_is_judged CHECK ((differs_from IS NULL) = (permitted IS NULL))
) @strict;

-- Alerts look at the newest differences, which are few.
CREATE INDEX nodd_wal_outcomes_differing ON nodd_wal_outcomes (at) WHERE permitted IS NOT NULL;

@append_only(nodd_wal_outcomes, outcomes_are_append_only, (wal_id, attempt));

-- Replays: repeated ingests that a person started, with their units and outcomes (RPL-05).
CREATE TABLE replay_runs (
    replay_run_id @id NOT NULL,
    name text NOT NULL,
    mode text NOT NULL,
    env text NOT NULL,
    state text NOT NULL,
    -- Why a person or the engine paused or stopped the replay; null in any other state.
    state_reason text,
    spec @json NOT NULL,
    spec_sha256 text NOT NULL,
    batches integer NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    change_ref text,
    -- Number of differing results when a person last started or resumed the replay; a further one stops the replay.
    mismatches_seen integer NOT NULL,
    created_at @time NOT NULL,
    updated_at @time NOT NULL,
    finished_at @time,
    CONSTRAINT replay_runs_one_row_per_replay PRIMARY KEY (replay_run_id),
    CONSTRAINT replay_runs_id_is_short CHECK (length(replay_run_id) BETWEEN 1 AND 60),
    CONSTRAINT replay_runs_name_is_short CHECK (length(name) BETWEEN 1 AND 100),
    -- A replay of an unknown mode would never end.
    CONSTRAINT replay_runs_mode_is_known CHECK (mode IN ('failed-only', 'repair-and-replace', 'backfill')),
    CONSTRAINT replay_runs_env_is_known CHECK (env IN ('dev', 'stage', 'prod')),
    -- A replay in an unknown state would never continue.
    CONSTRAINT replay_runs_state_is_known CHECK (state IN ('planned', 'running', 'paused', 'stopped', 'finished')),
    -- Without the reason of a halt, a person could not decide whether to resume.
    CONSTRAINT replay_runs_halt_has_reason CHECK (
        (state IN ('paused', 'stopped')) = (state_reason IS NOT NULL) AND coalesce(length(state_reason), 1) BETWEEN 1 AND 1000
    ),
    CONSTRAINT replay_runs_finish_is_stamped CHECK ((state = 'finished') = (finished_at IS NOT NULL)),
    -- The hash identifies the approved selection.
    CONSTRAINT replay_runs_spec_hash_is_sha256 CHECK (@sha256(spec_sha256)),
    CONSTRAINT replay_runs_spec_is_object CHECK (@json_type(spec) = 'object'),
    CONSTRAINT replay_runs_counts_are_counted CHECK (batches >= 0 AND mismatches_seen >= 0),
    -- A replay without actor or reason could not be audited.
    CONSTRAINT replay_runs_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT replay_runs_change_ref_is_bounded CHECK (length(change_ref) BETWEEN 1 AND 200),
    -- A result is replaced only by a change that can be looked up (RPL-07).
    CONSTRAINT replay_runs_replacing_has_change_ref CHECK (mode <> 'repair-and-replace' OR change_ref IS NOT NULL)
    -- Text sorts as time only if it has a single form; PostgreSQL has a type for times.
    @sqlite(, CONSTRAINT replay_runs_times_are_rfc3339
    CHECK (@rfc3339(created_at) AND @rfc3339(updated_at) AND @rfc3339(finished_at)))
) @strict;

CREATE INDEX replay_runs_by_state ON replay_runs (state, created_at);

-- A replay begins as planned, before any batch.
@refuse(
    replay_runs_begin_planned, INSERT ON replay_runs, replay_begins_planned: replay_run_id: state,
    NOT coalesce(NEW.state = 'planned' AND NEW.created_at = NEW.updated_at AND NEW.mismatches_seen = 0, FALSE)
);

-- Every update is one of these transitions; any other ordered pair of states is illegal.
@refuse(
    replay_runs_transition_is_legal, UPDATE ON replay_runs, illegal_transition: replay_run_id: state,
    NOT coalesce(
        OLD.state || '>' || NEW.state IN (
            'planned>running', 'running>paused', 'running>stopped', 'running>finished', 'paused>running',
            'paused>stopped', 'stopped>running'
        ), FALSE
    )
);

-- The approved selection never changes.
@refuse(
    replay_runs_identity_is_immutable, UPDATE ON replay_runs, replay_runs_identity_is_immutable,
    @changed(replay_run_id, name, mode, env, spec, spec_sha256, batches, actor, reason, change_ref, created_at)
);
@kept(replay_runs, replay_runs_are_kept, (replay_run_id));

-- The frozen selection of a replay, and the decision on each unit, made when its batch was due.
CREATE TABLE replay_units (
    replay_run_id @id NOT NULL,
    -- The order of the selection: event time, then wal_id.
    position integer NOT NULL,
    batch integer NOT NULL,
    wal_id @id NOT NULL,
    dataset text NOT NULL,
    -- Status and version of the record when it was selected.
    selected_status text NOT NULL,
    selected_version integer NOT NULL,
    state text NOT NULL,
    skip_reason text,
    -- The record's version after the admission; the record's later history has the outcome.
    admitted_version integer,
    decided_at @time,
    CONSTRAINT replay_units_one_row_per_position PRIMARY KEY (replay_run_id, position),
    CONSTRAINT replay_units_replay_is_known FOREIGN KEY (replay_run_id) REFERENCES replay_runs (replay_run_id),
    CONSTRAINT replay_units_record_is_known FOREIGN KEY (wal_id) REFERENCES nodd_wal_records (wal_id),
    -- An admission without its version in the record's history has not happened.
    CONSTRAINT replay_units_admission_is_in_history
    FOREIGN KEY (wal_id, admitted_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT replay_units_are_counted_from_one CHECK (position >= 1 AND batch >= 1),
    CONSTRAINT replay_units_state_is_known CHECK (state IN ('selected', 'admitted', 'skipped')),
    -- A skip without a reason could not be explained.
    CONSTRAINT replay_units_skip_has_reason CHECK (
        (state = 'skipped') = (skip_reason IS NOT NULL) AND coalesce(length(skip_reason), 1) BETWEEN 1 AND 60
    ),
    CONSTRAINT replay_units_admission_has_version CHECK ((state = 'admitted') = (admitted_version IS NOT NULL)),
    CONSTRAINT replay_units_decision_is_stamped CHECK (
        (state = 'selected') = (decided_at IS NULL) @sqlite(AND @rfc3339(decided_at))
    )
) @strict;

-- A unit that is twice in a replay would be ingested twice.
CREATE UNIQUE INDEX replay_units_one_row_per_unit ON replay_units (wal_id, replay_run_id);

-- The next batch, and the admitted units.
CREATE INDEX replay_units_by_state ON replay_units (replay_run_id, state, batch);

-- Recently decided units, for the replay's rate.
CREATE INDEX replay_units_by_decision ON replay_units (decided_at) WHERE decided_at IS NOT NULL;

-- The selection is frozen once the replay runs; until then its rows are undecided.
@refuse(
    replay_units_begin_selected, INSERT ON replay_units, replay_units_are_frozen, NEW.state IS DISTINCT FROM 'selected'
);
@refuse(
    replay_units_are_frozen, INSERT ON replay_units, replay_units_are_frozen,
    NOT EXISTS (
        SELECT 1 FROM replay_runs AS run WHERE run.replay_run_id = NEW.replay_run_id AND run.state = 'planned'
    )
);
@not_replaced(replay_units, replay_units_are_frozen, (replay_run_id, position), (replay_run_id, wal_id));

-- Each unit is decided once, while its replay runs.
@refuse(
    replay_units_are_decided_once, UPDATE ON replay_units, replay_units_are_decided_once,
    OLD.state <> 'selected' OR NEW.state NOT IN ('admitted', 'skipped')
    OR @changed(replay_run_id, position, batch, wal_id, dataset, selected_status, selected_version)
);
@refuse(
    replay_units_are_decided_while_it_runs, UPDATE ON replay_units, replay_units_are_decided_once,
    NOT EXISTS (
        SELECT 1 FROM replay_runs AS run WHERE run.replay_run_id = NEW.replay_run_id AND run.state = 'running'
    )
);
@kept(replay_units, replay_units_are_kept);

-- Outcome of each unit: `selected` (waiting) or `skipped`; after its admission the first terminal status, else the
-- present status, with `retrying` for a failed unit that has a due time.
CREATE VIEW replay_outcomes AS
SELECT
    unit.replay_run_id,
    unit.position,
    unit.batch,
    unit.wal_id,
    unit.dataset,
    unit.skip_reason,
    CASE
        WHEN unit.state <> 'admitted' THEN unit.state
        ELSE coalesce(
            (
                SELECT change.to_status FROM nodd_wal_transitions AS change
                WHERE
                    change.wal_id = unit.wal_id AND change.version > unit.admitted_version
                    AND change.to_status IN ('succeeded', 'quarantined')
                ORDER BY change.version
                LIMIT 1
            ),
            CASE WHEN record.status = 'failed' AND record.next_attempt_at IS NOT NULL THEN 'retrying' ELSE record.status END
        )
    END AS outcome
FROM replay_units AS unit
INNER JOIN nodd_wal_records AS record ON unit.wal_id = record.wal_id;

-- Quarantine cases: what a person needs to decide on a quarantined unit, and how the case ended (BEY-06).

-- One case per quarantine; a unit that is quarantined again after its release has another case.
CREATE TABLE quarantine_cases (
    wal_id @id NOT NULL,
    -- The version that the quarantine gave the record.
    quarantined_version integer NOT NULL,
    opened_at @time NOT NULL,
    reason text NOT NULL,
    -- The evidence bundle, relative to the storage URL; null until it is collected.
    evidence_uri text,
    evidence_sha256 text,
    collected_at @time,
    state text NOT NULL,
    closed_at @time,
    -- Who closed it, why and under which change.
    closing_entry @bigint,
    CONSTRAINT quarantine_cases_one_row_per_quarantine PRIMARY KEY (wal_id, quarantined_version),
    -- A case needs a quarantine in the history. Deferred, because the history is written after the case.
    CONSTRAINT quarantine_cases_quarantine_happened
    FOREIGN KEY (wal_id, quarantined_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    -- A case that no entry closed could not be explained.
    CONSTRAINT quarantine_cases_closing_entry_is_known FOREIGN KEY (closing_entry) REFERENCES governance_log (entry_id),
    -- A case in an unknown state would not be listed.
    CONSTRAINT quarantine_cases_state_is_known CHECK (state IN ('open', 'released', 'discarded')),
    -- A bundle whose name is not its hash could be exchanged.
    CONSTRAINT quarantine_cases_evidence_is_content_addressed CHECK (
        (evidence_uri IS NULL) = (evidence_sha256 IS NULL) AND (evidence_uri IS NULL) = (collected_at IS NULL)
        AND coalesce(
            evidence_uri = 'evidence/' || substr(evidence_sha256, 1, 2) || '/' || evidence_sha256 || '.json', TRUE
        )
    ),
    -- A case closed without its time or entry would be neither listed as open nor explained.
    CONSTRAINT quarantine_cases_closing_is_whole
    CHECK ((state = 'open') = (closed_at IS NULL) AND (state = 'open') = (closing_entry IS NULL))
) @strict;

-- Few cases wait for evidence, however many units were ever quarantined.
CREATE INDEX quarantine_cases_without_evidence ON quarantine_cases (opened_at, wal_id) WHERE evidence_uri IS NULL;

CREATE INDEX quarantine_cases_by_state ON quarantine_cases (state, opened_at, wal_id);

-- Opens and releases a case in the statement that moves its unit, even in plain SQL, so every quarantine has a case.
@after(
    nodd_wal_records_open_their_case, UPDATE ON nodd_wal_records, NEW.status = 'quarantined',
    INSERT INTO quarantine_cases (wal_id, quarantined_version, opened_at, reason, state)
    VALUES (NEW.wal_id, NEW.version, NEW.updated_at, NEW.change_reason, 'open')
);
-- Every quarantine is in the governance log, even one by plain SQL (WSM-20). A person's decision is there already; any
-- other quarantine gets its entry here, with the error's text if the error is the reason. A worker's name is cut to the
-- entry's limit, because a longer name must not prevent a quarantine.
@after(
    nodd_wal_records_log_their_quarantine, UPDATE ON nodd_wal_records, NEW.status = 'quarantined',
    INSERT INTO governance_log (
        at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details
    )
    SELECT
        NEW.updated_at, substr(NEW.changed_by, 1, 200), 'quarantine', NEW.dataset, NEW.wal_id, NEW.version, OLD.status,
        NEW.status,
        substr(coalesce(
            CASE WHEN NEW.change_reason = NEW.last_error_code THEN nullif(NEW.last_error_message, '') END,
            NEW.change_reason
        ), 1, 1000),
        NULL,
        @json_object(
            'run_id', NEW.ingest_run_id, 'error_code', NEW.last_error_code, 'reason_code', NEW.change_reason
        )
    WHERE NOT EXISTS (
        SELECT 1 FROM governance_log AS g WHERE g.wal_id = NEW.wal_id AND g.record_version = NEW.version
    )
);
@after(
    nodd_wal_records_release_their_case, UPDATE ON nodd_wal_records, OLD.status = 'quarantined',
    UPDATE quarantine_cases SET
        state = 'released',
        closed_at = NEW.updated_at,
        closing_entry = (
            SELECT g.entry_id FROM governance_log AS g
            WHERE g.wal_id = NEW.wal_id AND g.record_version = NEW.version
        )
    WHERE wal_id = OLD.wal_id AND quarantined_version = OLD.version
);

-- A unit that a person discarded is not requeued by a later list of units.
@refuse(
    nodd_wal_records_discarded_stay_out, UPDATE ON nodd_wal_records, discarded_stays_out: wal_id: status,
    OLD.status = 'quarantined',
    EXISTS (
        SELECT 1 FROM quarantine_cases AS c
        WHERE c.wal_id = OLD.wal_id AND c.quarantined_version = OLD.version AND c.state = 'discarded'
    )
);

-- A case is opened only for a unit in quarantine without a case, that is, by the trigger above.
@refuse(
    quarantine_cases_are_opened_by_the_ledger, INSERT ON quarantine_cases, cases_are_opened_by_the_ledger,
    EXISTS (
        SELECT 1 FROM quarantine_cases AS c
        WHERE c.wal_id = NEW.wal_id AND c.quarantined_version = NEW.quarantined_version
    )
    OR NOT EXISTS (
        SELECT 1 FROM nodd_wal_records AS r
        WHERE r.wal_id = NEW.wal_id AND r.version = NEW.quarantined_version AND r.status = 'quarantined'
    )
);

-- Evidence is attached once. A case is closed once, and only by its decision in the governance log.
@refuse(
    quarantine_cases_are_filled_and_closed_once, UPDATE ON quarantine_cases, cases_are_filled_and_closed_once,
    @changed(wal_id, quarantined_version, opened_at, reason)
    OR (OLD.evidence_uri IS NOT NULL AND @changed(evidence_uri, evidence_sha256, collected_at))
    OR (
        @changed(state, closed_at, closing_entry)
        AND NOT (
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
);
@kept(quarantine_cases, cases_are_kept);

-- Backfills (DAG-05) are replays by listing; this is the progress of each day of each of their datasets.

-- One day of one dataset. Objects that were known before and left unchanged are `listed - created - requeued`.
CREATE TABLE backfill_days (
    backfill_id @id NOT NULL,
    dataset text NOT NULL,
    day text NOT NULL,
    state text NOT NULL,
    -- Number of requested runs, because the next request needs another name.
    requests integer NOT NULL,
    requested_at @time,
    listed_at @time,
    -- Objects of the present listing, or of the listing that has ended.
    listed @bigint NOT NULL,
    -- Records that this backfill created and requeued, over all its listings of the day.
    created @bigint NOT NULL,
    requeued @bigint NOT NULL,
    -- Listed keys that give no unit, written when the listing has ended: by reason their number and the first keys.
    left_out @json,
    CONSTRAINT backfill_days_left_out_is_object CHECK (@json_type(left_out) = 'object'),
    CONSTRAINT backfill_days_one_row_per_day PRIMARY KEY (backfill_id, dataset, day),
    CONSTRAINT backfill_days_backfill_is_known FOREIGN KEY (backfill_id) REFERENCES replay_runs (replay_run_id),
    CONSTRAINT backfill_days_day_is_a_day CHECK (@is_day(day)),
    -- A day in an unknown state would keep its backfill open forever.
    CONSTRAINT backfill_days_state_is_known CHECK (state IN ('waiting', 'requested', 'listed')),
    -- A day that counts as listed without a request would hide missing objects.
    CONSTRAINT backfill_days_states_have_their_times CHECK (
        (state = 'waiting') = (requested_at IS NULL) AND (state = 'waiting') = (requests = 0)
        AND (state = 'listed') = (listed_at IS NOT NULL)
    ),
    CONSTRAINT backfill_days_counts_are_counts
    CHECK (requests >= 0 AND listed >= 0 AND created >= 0 AND requeued >= 0)
) @strict;

CREATE INDEX backfill_days_open ON backfill_days (backfill_id, day, dataset) WHERE state <> 'listed';

-- A day that is listed is not listed again by the same backfill, and never goes back to waiting.
@refuse(
    backfill_days_only_go_on, UPDATE ON backfill_days, backfill_days_only_go_on,
    OLD.state = 'listed' OR NEW.state = 'waiting'
    OR (OLD.state = 'waiting' AND NEW.state = 'listed')
    OR NEW.requests < OLD.requests OR NEW.created < OLD.created OR NEW.requeued < OLD.requeued
    OR @changed(backfill_id, dataset, day)
);
@kept(backfill_days, backfill_days_are_kept, (backfill_id, dataset, day));

-- The undo log: what a run wrote to the catalog, and what was there before (PCS-03).

-- Contents of Item files before they were overwritten, by the hash of the bytes.
CREATE TABLE catalog_kept_files (
    sha256 text NOT NULL,
    -- Compressed by Zstandard; content_bytes is the length before compression.
    content @bytes NOT NULL,
    content_bytes integer NOT NULL,
    CONSTRAINT catalog_kept_files_one_row_per_content PRIMARY KEY (sha256),
    CONSTRAINT catalog_kept_files_sha256_is_hex CHECK (@sha256(sha256)),
    CONSTRAINT catalog_kept_files_length_is_counted CHECK (content_bytes >= 0)
) @strict;

-- postgresql: the content is compressed already; compressing it again would only cost time.
ALTER TABLE catalog_kept_files ALTER COLUMN content SET STORAGE EXTERNAL;

@append_only(catalog_kept_files, undo_log_is_append_only);
@not_repeated(catalog_kept_files, (sha256));

-- A row per attempt to write an Item, committed before the file is written, so that a crash may leave a row without its
-- file, but never a file without its row. catalog_items.promotion_id shows whether the attempt succeeded.
CREATE TABLE catalog_promotions (
    -- Never reused, so that an Item with this id is from this write and no other.
    promotion_id @serial(catalog_promotions_one_row_per_promotion),
    -- Null for a write outside of any run, which no rollback undoes.
    run_id text,
    dataset text NOT NULL,
    collection_id text NOT NULL,
    item_id text NOT NULL,
    partition_key text NOT NULL,
    -- The Item's unit, so that the object of a withdrawn Item is known, too.
    wal_id @id NOT NULL,
    -- Hash of the file to write.
    after_sha256 text NOT NULL,
    -- The previous row of the index; null if there was none.
    before_promotion_id @bigint,
    before_revision integer,
    -- Hash of the previous file; null if there was none.
    before_sha256 text,
    logged_at @time NOT NULL,
    -- When the write was undone; after that, no undo restores this version.
    withdrawn_at @time,
    -- The other columns of the replaced row of catalog_items; null if there was none, or if the writer saw another row.
    old_partition_key text,
    old_page integer,
    old_content_sha256 text,
    old_object_uri text,
    old_wal_id text,
    old_precedence text,
    old_sequencer text,
    old_west @real,
    old_south @real,
    old_east @real,
    old_north @real,
    old_start_at @time,
    old_end_at @time,
    old_summaries @json,
    old_updated_at @time,
    old_replaces_wal_id text,
    CONSTRAINT catalog_promotions_after_is_sha256 CHECK (@sha256(after_sha256)),
    -- A file whose bytes are not kept could not be restored.
    CONSTRAINT catalog_promotions_before_is_kept FOREIGN KEY (before_sha256) REFERENCES catalog_kept_files (sha256),
    CONSTRAINT catalog_promotions_before_is_a_row CHECK (
        before_revision IS NOT NULL OR (before_promotion_id IS NULL AND before_sha256 IS NULL)
    )
) @strict;

CREATE INDEX catalog_promotions_by_run ON catalog_promotions (run_id, collection_id);

CREATE INDEX catalog_promotions_by_item ON catalog_promotions (collection_id, item_id);

@kept(catalog_promotions, undo_log_is_append_only, (promotion_id));
@refuse(
    catalog_promotions_are_withdrawn_once, UPDATE ON catalog_promotions, undo_log_is_append_only,
    OLD.withdrawn_at IS NOT NULL OR @changed(
        promotion_id, run_id, dataset, collection_id, item_id, partition_key, wal_id, after_sha256,
        before_promotion_id, before_revision, before_sha256, logged_at, old_partition_key, old_page, old_content_sha256,
        old_object_uri, old_wal_id, old_precedence, old_sequencer, old_west, old_south, old_east, old_north,
        old_start_at, old_end_at, old_summaries, old_updated_at, old_replaces_wal_id
    )
);

-- The catalog's index: the Items of the published STAC catalog. Files are written from the index, never the reverse.
CREATE TABLE catalog_collections (
    collection_id text NOT NULL,
    dataset text NOT NULL,
    title text NOT NULL,
    CONSTRAINT catalog_collections_one_row_each PRIMARY KEY (collection_id)
) @strict;

CREATE TABLE catalog_items (
    collection_id text NOT NULL,
    item_id text NOT NULL,
    -- Location of the Item's file: UTC day, and the page of the day that links it.
    partition_key text NOT NULL,
    page integer NOT NULL,
    content_sha256 text NOT NULL,
    object_uri text NOT NULL,
    wal_id text NOT NULL,
    -- Order of an Item's re-issues: by the contract's group, then by S3's sequencer of the key.
    precedence text NOT NULL,
    sequencer text NOT NULL,
    revision integer NOT NULL,
    -- WGS 84 degrees; west > east crosses the antimeridian; all null without geometry.
    west @real,
    south @real,
    east @real,
    north @real,
    start_at @time NOT NULL,
    end_at @time NOT NULL,
    -- Values that the Collection summarises, by property.
    summaries @json NOT NULL,
    updated_at @time NOT NULL,
    -- The unit of the previous Item, of which this Item is a revision in the lineage.
    replaces_wal_id text,
    -- The promotion that wrote the current Item, so that every Item has its undo record.
    promotion_id @bigint,
    -- In the order of pages, so that the rows of a batch, which fills a page or two, are adjacent, and so are the rows
    -- for a page's links and extent. In the order of Items, each row of a batch would be in another database page.
    CONSTRAINT catalog_items_in_order_of_pages PRIMARY KEY (collection_id, partition_key, page, item_id),
    -- An Item has one row, whatever wrote it.
    CONSTRAINT catalog_items_one_row_per_item UNIQUE (collection_id, item_id),
    CONSTRAINT catalog_items_collection_exists FOREIGN KEY (collection_id) REFERENCES catalog_collections (collection_id),
    CONSTRAINT catalog_items_page_counts_from_one CHECK (page >= 1),
    CONSTRAINT catalog_items_revision_counts_from_one CHECK (revision >= 1),
    CONSTRAINT catalog_items_content_is_sha256 CHECK (@sha256(content_sha256)),
    CONSTRAINT catalog_items_bbox_is_whole CHECK (
        (west IS NULL) = (south IS NULL) AND (west IS NULL) = (east IS NULL) AND (west IS NULL) = (north IS NULL)
    ),
    CONSTRAINT catalog_items_time_range_is_ordered CHECK (start_at <= end_at),
    CONSTRAINT catalog_items_summaries_is_object CHECK (@json_type(summaries) = 'object'),
    CONSTRAINT catalog_items_promotion_is_logged
    FOREIGN KEY (promotion_id) REFERENCES catalog_promotions (promotion_id)
) @without_rowid;

-- Index for finding Items whose unit has ended without lineage.
CREATE INDEX catalog_items_by_unit ON catalog_items (wal_id);

-- A write that did not see the revision it replaces would lose the other writer's update.
@refuse(
    catalog_items_revision_grows_by_one, UPDATE ON catalog_items, catalog_items_revision_grows_by_one,
    NEW.revision <> OLD.revision + 1
);

-- An Item that moved would leave its old file and its old link behind.
@refuse(
    catalog_items_keep_their_home, UPDATE ON catalog_items, catalog_items_keep_their_home,
    NEW.partition_key <> OLD.partition_key OR NEW.page <> OLD.page
);

-- An Item is removed from the index only after the undo log has its promotion as withdrawn (ADR 012).
@refuse(
    catalog_items_leave_by_an_undo, DELETE ON catalog_items, items_leave_by_an_undo,
    NOT EXISTS (
        SELECT 1 FROM catalog_promotions AS p WHERE p.promotion_id = OLD.promotion_id AND p.withdrawn_at IS NOT NULL
    )
);
@not_truncated(catalog_items, items_leave_by_an_undo);

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger; an upsert is an INSERT, too.
@refuse(
    catalog_items_are_not_replaced, INSERT ON catalog_items, catalog_items_revision_grows_by_one,
    EXISTS (
        SELECT 1 FROM catalog_items AS r
        WHERE
            r.collection_id = NEW.collection_id AND r.item_id = NEW.item_id
            AND (NEW.revision <> r.revision + 1 OR NEW.partition_key <> r.partition_key OR NEW.page <> r.page)
    )
);

-- One row per page, recounted from its Items, so that extents of days and collections need not read every Item.
CREATE TABLE catalog_pages (
    collection_id text NOT NULL,
    partition_key text NOT NULL,
    page integer NOT NULL,
    items integer NOT NULL,
    west @real,
    south @real,
    east @real,
    north @real,
    -- The same longitudes counted from 0 to 360 degrees, for Items around the antimeridian.
    west_360 @real,
    east_360 @real,
    over_antimeridian integer NOT NULL,
    over_greenwich integer NOT NULL,
    start_at @time NOT NULL,
    end_at @time NOT NULL,
    -- Newest promotion of the page's Items, to find the run that wrote the collection last.
    newest_promotion @bigint,
    CONSTRAINT catalog_pages_one_row_each PRIMARY KEY (collection_id, partition_key, page),
    CONSTRAINT catalog_pages_are_not_empty CHECK (items >= 1)
) @without_rowid;

-- Number of a collection's Items with a value, so that exact summaries need not read every Item.
CREATE TABLE catalog_summaries (
    collection_id text NOT NULL,
    property text NOT NULL,
    -- Canonical JSON.
    value text NOT NULL,
    items integer NOT NULL,
    CONSTRAINT catalog_summaries_one_row_per_value PRIMARY KEY (collection_id, property, value),
    -- More removals than additions would mean that an Item was counted wrongly.
    CONSTRAINT catalog_summaries_items_are_not_negative CHECK (items >= 0)
) @without_rowid;

-- Changes of the catalog, in the order of their commits, because a collection has one writer at a time.
CREATE TABLE catalog_changes (
    change_id @serial(catalog_changes_one_row_per_change),
    collection_id text NOT NULL,
    item_id text NOT NULL,
    partition_key text NOT NULL,
    kind text NOT NULL,
    -- Hash of the Item after the change.
    content_sha256 text,
    changed_at @time NOT NULL,
    CONSTRAINT catalog_changes_kind_is_known CHECK (kind IN ('created', 'updated', 'withdrawn')),
    CONSTRAINT catalog_changes_content_is_sha256 CHECK (@sha256(content_sha256)),
    -- A withdrawal has no content; any other change has the hash of the Item's content.
    CONSTRAINT catalog_changes_content_is_of_what_stands CHECK ((content_sha256 IS NULL) = (kind = 'withdrawn'))
) @strict;

CREATE INDEX catalog_changes_by_collection ON catalog_changes (collection_id, change_id);

@append_only(catalog_changes, catalog_changes_are_append_only, (change_id));

-- The newest event of each Item for each subscription of announcements.yaml, and the event's delivery.
CREATE TABLE announcements (
    subscription text NOT NULL,
    collection_id text NOT NULL,
    item_id text NOT NULL,
    -- The change that the event reports.
    change_id @bigint NOT NULL,
    kind text NOT NULL,
    event_id text NOT NULL,
    -- open: to be sent, or sent and not known to be accepted; silent: of a kind that the subscription does not want.
    state text NOT NULL,
    -- Whether the receiver knows the Item, or does not want events about new Items.
    known @bool NOT NULL,
    -- How often the receiver refused this event while it accepted other events.
    attempts integer NOT NULL DEFAULT 0,
    failing_since @time,
    last_error text,
    -- The refused event, which a person may have sent again.
    body text,
    -- Accepted events of the Item, and when the last was accepted.
    taken integer NOT NULL DEFAULT 0,
    taken_at @time,
    CONSTRAINT announcements_one_row_per_item PRIMARY KEY (subscription, collection_id, item_id),
    CONSTRAINT announcements_kind_is_known CHECK (kind IN ('created', 'updated', 'withdrawn')),
    CONSTRAINT announcements_state_is_known CHECK (state IN ('open', 'sent', 'refused', 'silent')),
    CONSTRAINT announcements_counts_are_not_negative CHECK (change_id >= 1 AND attempts >= 0 AND taken >= 0),
    CONSTRAINT announcements_taken_have_a_time CHECK ((taken = 0) = (taken_at IS NULL)),
    CONSTRAINT announcements_sent_were_taken CHECK (state <> 'sent' OR taken >= 1),
    CONSTRAINT announcements_error_is_bounded CHECK (length(last_error) <= 500),
    -- A refused event without its error could not be explained, and without its body not sent again.
    CONSTRAINT announcements_refused_are_kept CHECK (
        (state = 'refused') = (body IS NOT NULL) AND (state <> 'refused' OR last_error IS NOT NULL)
    )
) @without_rowid;

CREATE INDEX announcements_by_state ON announcements (subscription, state, taken_at);

-- A row advances only to a later change of the same Item, so that sent events are not forgotten.
@refuse(
    announcements_go_on, UPDATE ON announcements, announcements_go_on,
    @changed(subscription, collection_id, item_id) OR NEW.change_id < OLD.change_id OR NEW.taken < OLD.taken
);
@kept(announcements, announcements_are_kept, (subscription, collection_id, item_id));

-- Lineage: the files that contain the OpenLineage runs and PROV activities of units.
CREATE TABLE lineage_batches (
    batch_id text NOT NULL,
    path text NOT NULL,
    dataset text NOT NULL,
    run_id text NOT NULL,
    -- Path of the file, relative to the lineage root.
    href text NOT NULL,
    sha256 text NOT NULL,
    unit_count integer NOT NULL,
    state text NOT NULL,
    -- State of the delivery to the OpenLineage backend.
    delivery text NOT NULL,
    created_at @time NOT NULL,
    published_at @time,
    -- The batch that withdrew this batch, why, and when. The withdrawn batch's file remains.
    invalidated_by text,
    invalidation_reason text,
    invalidated_at @time,
    CONSTRAINT lineage_batches_one_row_per_content PRIMARY KEY (batch_id),
    -- Two batches in one file would overwrite each other.
    CONSTRAINT lineage_batches_one_file_each UNIQUE (href),
    CONSTRAINT lineage_batches_path_is_known CHECK (path IN ('openlineage', 'prov')),
    CONSTRAINT lineage_batches_state_is_known CHECK (state IN ('staged', 'published')),
    CONSTRAINT lineage_batches_published_has_time CHECK ((state = 'published') = (published_at IS NOT NULL)),
    CONSTRAINT lineage_batches_delivery_is_known CHECK (delivery IN ('none', 'pending', 'delivered')),
    -- Only OpenLineage has a backend, which gets only published batches.
    CONSTRAINT lineage_batches_delivers_openlineage CHECK (delivery = 'none' OR path = 'openlineage'),
    CONSTRAINT lineage_batches_delivers_published CHECK (delivery <> 'delivered' OR state = 'published'),
    CONSTRAINT lineage_batches_sha256_is_hex CHECK (@sha256(sha256)),
    CONSTRAINT lineage_batches_is_not_empty CHECK (unit_count > 0),
    -- Deferred, because a batch is marked as withdrawn before the withdrawing batch is written.
    CONSTRAINT lineage_batches_invalidation_is_published
    FOREIGN KEY (invalidated_by) REFERENCES lineage_batches (batch_id) DEFERRABLE INITIALLY DEFERRED,
    -- A batch cannot withdraw itself.
    CONSTRAINT lineage_batches_invalidation_is_of_another_batch CHECK (invalidated_by <> batch_id),
    CONSTRAINT lineage_batches_invalidation_is_whole CHECK (
        (invalidated_by IS NULL) = (invalidated_at IS NULL) AND (invalidated_by IS NULL) = (invalidation_reason IS NULL)
    ),
    CONSTRAINT lineage_batches_invalidation_reason_is_bounded CHECK (length(invalidation_reason) BETWEEN 1 AND 200)
) @strict;

CREATE INDEX lineage_batches_by_run ON lineage_batches (run_id, dataset);

@kept(lineage_batches, lineage_is_append_only, (batch_id), (href));

-- A batch's content never changes, its publication and its delivery only advance, and it is withdrawn at most once.
@refuse(
    lineage_batches_only_go_on, UPDATE ON lineage_batches, lineage_batches_only_go_on,
    @changed(batch_id, path, dataset, run_id, href, sha256, unit_count, created_at)
    OR (OLD.state = 'published' AND @changed(state, published_at))
    OR (OLD.invalidated_by IS NOT NULL AND @changed(invalidated_by, invalidation_reason, invalidated_at))
    OR (NEW.delivery <> OLD.delivery AND NOT (OLD.delivery = 'pending' AND NEW.delivery = 'delivered'))
);

CREATE TABLE lineage_emissions (
    wal_id text NOT NULL,
    path text NOT NULL,
    -- Empty for a unit's first publication; a repair that changed the Item adds a revision with the replay's id.
    revision text NOT NULL,
    -- OpenLineage run id or PROV activity id, by path.
    lineage_id text NOT NULL,
    batch_id text NOT NULL,
    -- Hash of the Item; null if the unit registered none.
    content_sha256 text,
    -- A unit whose lineage is recorded twice would have duplicate edges.
    CONSTRAINT lineage_emissions_once_per_unit_path_and_revision PRIMARY KEY (wal_id, path, revision),
    -- An OpenLineage run or a PROV activity belongs to a single unit.
    CONSTRAINT lineage_emissions_id_names_one_unit UNIQUE (lineage_id),
    CONSTRAINT lineage_emissions_path_is_known CHECK (path IN ('openlineage', 'prov')),
    CONSTRAINT lineage_emissions_revision_is_bounded CHECK (length(revision) <= 200),
    CONSTRAINT lineage_emissions_content_is_sha256 CHECK (@sha256(content_sha256)),
    -- A recorded unit needs the batch that contains it. Deferred, because the units of a batch are known only after
    -- their rows are inserted.
    CONSTRAINT lineage_emissions_have_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id)
    DEFERRABLE INITIALLY DEFERRED
) @without_rowid;

CREATE INDEX lineage_emissions_by_batch ON lineage_emissions (batch_id);

@append_only(lineage_emissions, lineage_is_append_only);
@not_repeated(lineage_emissions, (wal_id, path, revision));

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger. The trigger above handles a repeated row.
@refuse(
    lineage_emissions_ids_are_not_replaced, INSERT ON lineage_emissions, lineage_emissions_id_names_one_unit,
    EXISTS (
        SELECT 1 FROM lineage_emissions AS r
        WHERE
            r.lineage_id = NEW.lineage_id
            AND (r.wal_id, r.path, r.revision) IS DISTINCT FROM (NEW.wal_id, NEW.path, NEW.revision)
    )
);

-- Failed attempts, by any recorder of the failure, each with the only lineage batch that publishes it.
CREATE TABLE lineage_failures (
    wal_id @id NOT NULL,
    -- The record's version after its transition to failed.
    version integer NOT NULL,
    batch_id text,
    CONSTRAINT lineage_failures_one_row_per_move PRIMARY KEY (wal_id, version),
    CONSTRAINT lineage_failures_record_is_known FOREIGN KEY (wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT lineage_failures_are_published_in_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id)
) @without_rowid;

CREATE INDEX lineage_failures_unpublished ON lineage_failures (wal_id, version) WHERE batch_id IS NULL;

@refuse(
    lineage_failures_are_only_published, UPDATE ON lineage_failures, lineage_failures_are_only_published,
    OLD.batch_id IS NOT NULL OR @changed(wal_id, version)
);
@kept(lineage_failures, lineage_is_append_only, (wal_id, version));
@after(
    nodd_wal_records_note_their_failure, UPDATE ON nodd_wal_records,
    OLD.status = 'in_progress' AND NEW.status = 'failed',
    INSERT INTO lineage_failures (wal_id, version) VALUES (NEW.wal_id, NEW.version)
);

-- The idempotent-node pattern: the intents of nodes, their last applied content, their outputs (IEN-03).
CREATE TABLE etl_wal (
    wal_id @bigserial(etl_wal_one_row_per_intent),
    run_id @uuid NOT NULL,
    node text NOT NULL,
    step text NOT NULL,
    -- Everything that a repeated run of the node needs: input manifest, parameters, code, context.
    payload @json NOT NULL,
    content_hash text NOT NULL,
    status text NOT NULL,
    started_at @time NOT NULL DEFAULT @now,
    applied_at @time,
    -- The units that the node's effect claimed in the ledger, as a manifest entry: URI, and SHA-256 of the units.
    claimed @json,
    CONSTRAINT etl_wal_status_is_known CHECK (status IN ('PENDING', 'APPLIED', 'SKIPPED', 'FAILED')),
    CONSTRAINT etl_wal_content_hash_is_sha256 CHECK (@sha256(content_hash)),
    -- PostgreSQL has a type for UUIDs.
    @sqlite(CONSTRAINT etl_wal_run_id_is_uuid CHECK (
        run_id LIKE '________-____-____-____-____________' AND @hexadecimal(replace(run_id, '-', ''))
    ),)
    CONSTRAINT etl_wal_payload_is_object CHECK (@json_type(payload) = 'object'),
    -- An effect without its time, or a time without an effect, would be wrong forever in lineage.
    CONSTRAINT etl_wal_applied_has_a_time CHECK ((status = 'APPLIED') = (applied_at IS NOT NULL)),
    -- If the intent were not applied, lineage would state that a run claimed units which it has released.
    CONSTRAINT etl_wal_claimed_is_applied
    CHECK (claimed IS NULL OR (status = 'APPLIED' AND @json_type(claimed) = 'object'))
) @strict;

-- A content takes effect once, even if two workers apply it.
CREATE UNIQUE INDEX etl_wal_content_is_applied_once ON etl_wal (content_hash) WHERE status = 'APPLIED';

CREATE INDEX etl_wal_unresolved ON etl_wal (node, wal_id) WHERE status IN ('PENDING', 'FAILED');

-- Applied intents of a node, such as a day's batches, without the payloads of other nodes.
CREATE INDEX etl_wal_applied ON etl_wal (node, wal_id) WHERE status = 'APPLIED';

CREATE INDEX etl_wal_by_run ON etl_wal (run_id, wal_id);

-- An intent comes before its effect, so that a crash between the two leaves a trace.
@refuse(etl_wal_begins_pending, INSERT ON etl_wal, etl_wal_begins_pending, NEW.status <> 'PENDING');
@refuse(
    etl_wal_move_is_legal, UPDATE ON etl_wal, etl_wal_move_is_legal,
    OLD.status || '>' || NEW.status NOT IN (
        'PENDING>APPLIED', 'PENDING>SKIPPED', 'PENDING>FAILED', 'FAILED>APPLIED', 'FAILED>SKIPPED'
    )
    OR @changed(wal_id, run_id, node, step, payload, content_hash, started_at)
);
@kept(etl_wal, etl_wal_is_append_only, (wal_id));

CREATE TABLE node_output (
    content_hash text NOT NULL,
    record @json NOT NULL,
    lineage @json,
    valid_from @time,
    -- Null while it is the newest output of its node.
    valid_to @time,
    CONSTRAINT node_output_one_row_per_content PRIMARY KEY (content_hash),
    CONSTRAINT node_output_content_hash_is_sha256 CHECK (@sha256(content_hash)),
    -- PostgreSQL has a type for JSON.
    @sqlite(CONSTRAINT node_output_record_is_json CHECK (json_valid(record)),
    CONSTRAINT node_output_lineage_is_json CHECK (lineage IS NULL OR json_valid(lineage)),)
    -- A validity that ends before it begins would be empty.
    CONSTRAINT node_output_window_is_one CHECK (valid_to IS NULL OR valid_to >= valid_from)
) @strict;

-- Outputs are immutable, except for the end of their validity, which a newer output sets and a repeated content clears.
@refuse(
    node_output_is_immutable, UPDATE ON node_output, node_output_is_immutable,
    @changed(content_hash, record, lineage, valid_from) OR (OLD.valid_to IS NOT NULL AND NEW.valid_to IS NOT NULL)
);
@kept(node_output, node_output_is_kept, (content_hash));

-- Applied content has an output that later runs can reuse.
@refuse(
    etl_wal_applied_has_an_output, UPDATE ON etl_wal, etl_wal_applied_has_an_output,
    NEW.status = 'APPLIED',
    NOT EXISTS (SELECT 1 FROM node_output AS o WHERE o.content_hash = NEW.content_hash)
);

CREATE TABLE etl_checkpoint (
    node text NOT NULL,
    last_applied_hash text NOT NULL,
    updated_at @time NOT NULL DEFAULT @now,
    CONSTRAINT etl_checkpoint_one_row_per_node PRIMARY KEY (node),
    -- A checkpoint without an output would skip work that was never done.
    CONSTRAINT etl_checkpoint_names_an_output
    FOREIGN KEY (last_applied_hash) REFERENCES node_output (content_hash)
) @strict;

@kept(etl_checkpoint, checkpoints_are_kept);

-- A checkpoint of content that was never applied would skip work that was never done.
@refuse(
    etl_checkpoint_begins_with_what_was_applied, INSERT ON etl_checkpoint, checkpoints_name_what_was_applied,
    NOT EXISTS (SELECT 1 FROM etl_wal AS w WHERE w.content_hash = NEW.last_applied_hash AND w.status = 'APPLIED')
);
@refuse(
    etl_checkpoint_names_what_was_applied, UPDATE ON etl_checkpoint, checkpoints_name_what_was_applied,
    NEW.node IS DISTINCT FROM OLD.node
    OR NOT EXISTS (SELECT 1 FROM etl_wal AS w WHERE w.content_hash = NEW.last_applied_hash AND w.status = 'APPLIED')
);

-- Steps: the end, the volume and the resources of each intent, and the lineage batch that publishes it (IEN-11).
CREATE TABLE etl_steps (
    wal_id @bigint NOT NULL,
    status text NOT NULL,
    ended_at @time NOT NULL,
    -- Figures; null if not measured.
    seconds @real,
    cpu_seconds @real,
    rows_in @bigint,
    rows_out @bigint,
    bytes_in @bigint,
    bytes_out @bigint,
    energy_kwh @real,
    carbon_gco2e @real,
    -- Method of the energy figure.
    measured_by text,
    cost_usd @real,
    -- Type of the error, without its text, which may be confidential.
    error text,
    -- OpenLineage batch that publishes the step; null until then.
    batch_id text,
    -- A failed intent may end once more, when a replay carries it out.
    CONSTRAINT etl_steps_one_row_per_end PRIMARY KEY (wal_id, status),
    CONSTRAINT etl_steps_have_an_intent FOREIGN KEY (wal_id) REFERENCES etl_wal (wal_id),
    CONSTRAINT etl_steps_have_ended CHECK (status IN ('APPLIED', 'SKIPPED', 'FAILED')),
    CONSTRAINT etl_steps_measures_are_not_negative CHECK (
        seconds >= 0 AND cpu_seconds >= 0 AND rows_in >= 0 AND rows_out >= 0 AND bytes_in >= 0 AND bytes_out >= 0
        AND energy_kwh >= 0 AND carbon_gco2e >= 0 AND cost_usd >= 0
    ),
    -- An energy figure without its method could not be compared.
    CONSTRAINT etl_steps_energy_has_a_method CHECK (
        (energy_kwh IS NULL) = (measured_by IS NULL) AND (carbon_gco2e IS NULL) = (measured_by IS NULL)
    ),
    CONSTRAINT etl_steps_error_is_of_a_failure CHECK (error IS NULL OR status = 'FAILED'),
    CONSTRAINT etl_steps_error_is_bounded CHECK (length(error) <= 200),
    CONSTRAINT etl_steps_are_published_in_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id)
) @without_rowid;

CREATE INDEX etl_steps_unpublished ON etl_steps (wal_id) WHERE batch_id IS NULL;

-- A step is measured once and published once.
@refuse(
    etl_steps_are_only_published, UPDATE ON etl_steps, etl_steps_are_only_published,
    OLD.batch_id IS NOT NULL
    OR @changed(
        wal_id, status, ended_at, seconds, cpu_seconds, rows_in, rows_out, bytes_in, bytes_out, energy_kwh,
        carbon_gco2e, measured_by, cost_usd, error
    )
);
@kept(etl_steps, etl_steps_are_kept, (wal_id, status));

-- The stage audit: a hash chain of the events of stages (operators of runs), attempt by attempt.
CREATE TABLE stage_audit (
    -- Number of the last line of the row.
    seq @bigint NOT NULL,
    at @time NOT NULL,
    run_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    kind text NOT NULL,
    -- Name of the event: a move, a gate, a stop.
    event text NOT NULL,
    -- Text, because the hash is of this text.
    details text NOT NULL,
    -- The row's earlier lines (passed gates, checkpoints), as an array of their kind, event and details.
    earlier text NOT NULL DEFAULT '[]',
    -- Hash of the line before the row's first line.
    previous_hash text NOT NULL,
    -- SHA-256 of the last line and the hash before it, which detects a changed, removed or inserted line.
    hash text NOT NULL,
    CONSTRAINT stage_audit_one_line_per_number PRIMARY KEY (seq),
    CONSTRAINT stage_audit_kind_is_known CHECK (
        kind IN ('transition', 'gate', 'stop', 'retry', 'checkpoint', 'compensation', 'override', 'replay')
    ),
    CONSTRAINT stage_audit_event_is_named CHECK (length(event) BETWEEN 1 AND 100),
    CONSTRAINT stage_audit_details_are_object CHECK (@json_type(@as_json(details)) = 'object'),
    CONSTRAINT stage_audit_earlier_is_array CHECK (@json_type(@as_json(earlier)) = 'array'),
    CONSTRAINT stage_audit_hash_is_sha256 CHECK (@sha256(hash)),
    -- Two lines after the same line would be two histories.
    CONSTRAINT stage_audit_does_not_fork UNIQUE (previous_hash)
) @strict;

CREATE INDEX stage_audit_by_stage ON stage_audit (run_id, stage, attempt, kind, event);

CREATE INDEX stage_audit_by_time ON stage_audit (at, seq);

CREATE INDEX stage_audit_by_kind ON stage_audit (kind, at);

-- Alerts are evaluated every 15 seconds, and read failed gates without reading passed gates.
CREATE INDEX stage_audit_failed_gates ON stage_audit (at)
WHERE kind = 'gate' AND (@as_json(details) ->> 'outcome') <> 'passed';

@refuse(
    stage_audit_is_chained, INSERT ON stage_audit, stage_audit_is_chained,
    NEW.previous_hash IS DISTINCT FROM coalesce(
        (SELECT p.hash FROM stage_audit AS p WHERE p.seq = NEW.seq - 1 - @json_size(@as_json(NEW.earlier))),
        CASE WHEN NEW.seq = 1 + @json_size(@as_json(NEW.earlier)) THEN '0000000000000000000000000000000000000000000000000000000000000000' END
    )
);
@append_only(stage_audit, stage_audit_is_append_only);
@not_replaced(stage_audit, stage_audit_is_chained, (seq));

CREATE TABLE stage_state (
    run_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    state text NOT NULL,
    idempotency_key text NOT NULL,
    -- Hashes of the stage's inputs, which a retry after a failure keeps.
    input_hashes @json NOT NULL,
    opened_at @time NOT NULL,
    started_at @time,
    ended_at @time,
    error_class text,
    -- Failed gates that the card lets pass, and E_SYNC (clock not synchronised); an output with any is [Restricted].
    restricted @json NOT NULL DEFAULT '[]',
    -- Location of the saved output, if the stage is a checkpoint.
    checkpoint_uri text,
    output_sha256 text,
    -- Summary of the effects undone outside the database.
    compensation @json,
    CONSTRAINT stage_state_one_row_per_attempt PRIMARY KEY (run_id, stage, attempt),
    CONSTRAINT stage_state_is_known CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'rolled_back')),
    CONSTRAINT stage_state_key_is_sha256 CHECK (@sha256(idempotency_key)),
    CONSTRAINT stage_state_inputs_are_array CHECK (@json_type(input_hashes) = 'array'),
    CONSTRAINT stage_state_restricted_is_array CHECK (@json_type(restricted) = 'array'),
    CONSTRAINT stage_state_error_is_of_a_failure CHECK (
        (state IN ('failed', 'rolled_back')) = (error_class IS NOT NULL)
        AND coalesce(
            error_class IN ('E_INPUT', 'E_DIM', 'E_GATE', 'E_SYNC', 'E_UQ', 'E_INTERNAL'), TRUE
        )
    ),
    CONSTRAINT stage_state_times_fit CHECK (
        (state = 'pending') = (started_at IS NULL) AND (state IN ('pending', 'running')) = (ended_at IS NULL)
    ),
    -- A checkpoint without its digest could not be verified.
    CONSTRAINT stage_state_checkpoint_has_a_digest CHECK (checkpoint_uri IS NULL OR output_sha256 IS NOT NULL),
    CONSTRAINT stage_state_compensation_is_object
    CHECK (compensation IS NULL OR @json_type(compensation) = 'object'),
    CONSTRAINT stage_state_rollback_rests_on_something
    CHECK (state <> 'rolled_back' OR compensation IS NOT NULL OR checkpoint_uri IS NOT NULL)
) @without_rowid;

CREATE INDEX stage_state_by_time ON stage_state (opened_at);

CREATE INDEX stage_state_unfinished ON stage_state (state, run_id) WHERE state IN ('pending', 'running');

-- A new attempt begins as pending, with the next number, after the previous attempt has ended.
@refuse(
    stage_state_begins_pending, INSERT ON stage_state, stage_state_begins_pending,
    NEW.state <> 'pending'
    OR NEW.attempt <> 1 + coalesce(
        (SELECT max(p.attempt) FROM stage_state AS p WHERE p.run_id = NEW.run_id AND p.stage = NEW.stage), 0
    )
    OR EXISTS (
        SELECT 1 FROM stage_state AS p
        WHERE p.run_id = NEW.run_id AND p.stage = NEW.stage AND p.state IN ('pending', 'running')
    )
);

-- A retry keeps the idempotency key and, after a failure, the inputs (PCS-05).
@refuse(
    stage_state_retry_keeps_key_and_inputs, INSERT ON stage_state, stage_state_retry_keeps_key_and_inputs,
    EXISTS (
        SELECT 1 FROM stage_state AS p
        WHERE
            p.run_id = NEW.run_id AND p.stage = NEW.stage AND p.attempt = NEW.attempt - 1
            AND (
                p.idempotency_key <> NEW.idempotency_key
                OR (p.state <> 'succeeded' AND p.input_hashes <> NEW.input_hashes)
            )
    )
);
@refuse(
    stage_state_move_is_legal, UPDATE ON stage_state, stage_state_move_is_legal,
    OLD.state || '>' || NEW.state NOT IN (
        'pending>running', 'running>succeeded', 'running>failed', 'failed>rolled_back'
    )
    OR @changed(run_id, stage, attempt, idempotency_key, input_hashes, opened_at)
);

-- Every move of a stage has its line in the audit (PCS-15).
@refuse(
    stage_state_move_is_audited, UPDATE ON stage_state, stage_state_move_is_audited,
    OLD.state <> NEW.state,
    NOT EXISTS (
        SELECT 1 FROM stage_audit AS a
        WHERE
            a.run_id = NEW.run_id AND a.stage = NEW.stage AND a.attempt = NEW.attempt
            AND a.kind = 'transition' AND a.event = OLD.state || '>' || NEW.state
    )
);
@kept(stage_state, stage_state_is_kept, (run_id, stage, attempt));

-- A public view (docs/sql-views.md): a run's result for a dataset, by the last attempt of each of its stages.
CREATE VIEW kfm_runs AS
SELECT
    run.run_id,
    run.dataset,
    CASE
        WHEN run.open > 0 THEN 'running'
        WHEN run.rolled_back > 0 THEN 'rolled_back'
        WHEN run.failed > 0 THEN 'failed'
        ELSE 'succeeded'
    END AS state,
    run.stages,
    run.failed_stage,
    run.error_class,
    run.started_at,
    CASE WHEN run.open = 0 THEN run.ended_at END AS ended_at,
    CAST(parsed.validation_summary ->> 'checks' AS integer) AS units_claimed,
    CAST(settled.validation_summary ->> 'succeeded' AS integer) AS units_succeeded,
    CAST(settled.validation_summary ->> 'retrying' AS integer) AS units_retrying,
    CAST(settled.validation_summary ->> 'quarantined' AS integer) AS units_quarantined,
    CAST(settled.validation_summary ->> 'lost' AS integer) AS units_lost
FROM (
    SELECT
        stage.run_id,
        substr(stage.stage, 1, @position(stage.stage || '.', '.') - 1) AS dataset,
        count(*) AS stages,
        count(CASE WHEN stage.state IN ('pending', 'running') THEN 1 END) AS open,
        count(CASE WHEN stage.state = 'rolled_back' THEN 1 END) AS rolled_back,
        count(CASE WHEN stage.state = 'failed' THEN 1 END) AS failed,
        max(CASE WHEN stage.error_class IS NOT NULL THEN stage.stage END) AS failed_stage,
        max(stage.error_class) AS error_class,
        min(stage.opened_at) AS started_at,
        max(stage.ended_at) AS ended_at
    FROM stage_state AS stage
    WHERE NOT EXISTS (
        SELECT 1 FROM stage_state AS later
        WHERE later.run_id = stage.run_id AND later.stage = stage.stage AND later.attempt > stage.attempt
    )
    GROUP BY stage.run_id, substr(stage.stage, 1, @position(stage.stage || '.', '.') - 1)
) AS run
LEFT JOIN run_state AS parsed ON run.dataset || '.message_parse' = parsed.dataset_id AND run.run_id = parsed.run_id
LEFT JOIN run_state AS settled ON run.dataset || '.settle' = settled.dataset_id AND run.run_id = settled.run_id;

-- Readings of a machine's clock by its kernel and by servers, for the clock's state and stability (PCS-10, PCS-17).
CREATE TABLE clock_readings (
    -- Order of the readings, because their times come from the clock in question.
    reading_id @serial(clock_readings_one_row_per_reading),
    -- The clock, by the boot id of its kernel.
    clock_id text NOT NULL,
    at @time NOT NULL,
    -- `kernel`, or `date:` and a server's host.
    source text NOT NULL,
    -- True time minus the clock's, which lies within offset +- uncertainty.
    offset_seconds @real,
    uncertainty_seconds @real,
    -- State as reported by the source, before any rule.
    state text NOT NULL,
    CONSTRAINT clock_readings_clock_is_named CHECK (length(clock_id) BETWEEN 1 AND 100),
    CONSTRAINT clock_readings_source_is_named CHECK (length(source) BETWEEN 1 AND 300),
    CONSTRAINT clock_readings_state_is_known CHECK (state IN ('locked', 'unlocked', 'unknown')),
    -- An offset without its uncertainty proves nothing.
    CONSTRAINT clock_readings_offset_has_bounds CHECK ((offset_seconds IS NULL) = (uncertainty_seconds IS NULL)),
    -- No clock is off by three centuries; a larger value is infinity or NaN.
    CONSTRAINT clock_readings_offset_is_finite
    CHECK (offset_seconds BETWEEN -1e10 AND 1e10 AND uncertainty_seconds BETWEEN 0 AND 1e10),
    -- A source that reports a locked clock knows the clock's offset.
    CONSTRAINT clock_readings_locked_has_offset CHECK (state <> 'locked' OR offset_seconds IS NOT NULL)
) @strict;

CREATE INDEX clock_readings_by_clock ON clock_readings (clock_id, reading_id);

CREATE INDEX clock_readings_by_time ON clock_readings (at);

@refuse(clock_readings_are_append_only, UPDATE ON clock_readings, clock_readings_are_append_only);
@not_truncated(clock_readings, clock_readings_are_append_only);
@not_replaced(clock_readings, clock_readings_are_append_only, (reading_id));

-- Retention may delete old readings; the clock's state and stability are computed from the last 30 days.
@refuse(
    clock_readings_are_kept_for_a_month, DELETE ON clock_readings, clock_readings_are_kept_for_a_month,
    OLD.at > (SELECT @days_before(max(r.at), 30) FROM clock_readings AS r)
);

-- Alerts: their subject, when they began to fire, how often people were notified, and who acknowledged them (PCS-18).
CREATE TABLE alerts (
    -- Never reused, so that an acknowledgement by number is of the alert that was notified.
    alert_id @serial(alerts_one_row_per_alert),
    rule text NOT NULL,
    -- What the alert is about; a rule and a subject have at most one open alert.
    subject text NOT NULL,
    state text NOT NULL DEFAULT 'firing',
    level text NOT NULL,
    opened_at @time NOT NULL,
    -- Since when the alert has this level; escalation counts from this time.
    level_since @time NOT NULL,
    -- The last evaluation that found events, and the number of events that it found within the rule's window.
    last_seen_at @time NOT NULL,
    observed integer NOT NULL,
    -- The newest of these events: when, in which run, by which stage or source.
    last_event_at @time NOT NULL,
    run_id text,
    place text NOT NULL,
    -- Time of the last notification, and number of notifications.
    last_notified_at @time,
    notifications integer NOT NULL DEFAULT 0,
    -- The last acknowledgement; escalation makes an acknowledged alert fire again.
    acknowledged_at @time,
    acknowledged_by text,
    acknowledged_why text,
    resolved_at @time,
    -- The evaluator's query and alerts.yaml list the rules; a list here would have to be kept equal.
    CONSTRAINT alerts_rule_is_a_word CHECK (length(rule) BETWEEN 1 AND 60 AND @word(rule)),
    CONSTRAINT alerts_subject_is_named CHECK (length(subject) BETWEEN 1 AND 300),
    CONSTRAINT alerts_place_is_named CHECK (length(place) BETWEEN 1 AND 300),
    CONSTRAINT alerts_state_is_known CHECK (state IN ('firing', 'acknowledged', 'resolved')),
    CONSTRAINT alerts_level_is_known CHECK (level IN ('info', 'warning', 'critical')),
    -- No alert fires without an event.
    CONSTRAINT alerts_events_are_counted CHECK (observed >= 1),
    CONSTRAINT alerts_notifications_are_counted CHECK (notifications >= 0 AND (notifications = 0) = (last_notified_at IS NULL)),
    CONSTRAINT alerts_acknowledgement_is_whole CHECK (
        (acknowledged_at IS NULL) = (acknowledged_by IS NULL) AND (acknowledged_at IS NULL) = (acknowledged_why IS NULL)
        AND (state <> 'acknowledged' OR acknowledged_at IS NOT NULL)
    ),
    CONSTRAINT alerts_resolution_has_a_time CHECK ((state = 'resolved') = (resolved_at IS NOT NULL))
) @strict;

-- Two concurrent evaluators open a single alert.
CREATE UNIQUE INDEX alerts_one_open_per_key ON alerts (rule, subject) WHERE state <> 'resolved';

CREATE INDEX alerts_by_key ON alerts (rule, subject, last_notified_at);

-- An alert begins as firing, and its level only rises. Only a firing alert is acknowledged; a resolved one is final.
@refuse(
    alerts_begin_firing, INSERT ON alerts, alerts_begin_firing,
    NEW.state <> 'firing' OR NEW.notifications <> 0 OR NEW.acknowledged_at IS NOT NULL
);
@refuse(
    alerts_move_is_legal, UPDATE ON alerts, alerts_move_is_legal,
    @changed(alert_id, rule, subject, opened_at)
    OR OLD.state = 'resolved'
    OR OLD.level || '>' || NEW.level IN ('critical>warning', 'critical>info', 'warning>info')
    OR NEW.notifications NOT IN (OLD.notifications, OLD.notifications + 1)
    -- An acknowledged alert fires again only at a higher level.
    OR (OLD.state = 'acknowledged' AND NEW.state = 'firing' AND NEW.level = OLD.level)
    OR (
        @changed(acknowledged_at, acknowledged_by, acknowledged_why)
        AND NOT (OLD.state = 'firing' AND NEW.state = 'acknowledged')
    )
);
@kept(alerts, alerts_are_kept, (alert_id));

-- Deliveries to make, each at least once: a row for each subject that a consumer has not received yet.
CREATE TABLE outbox (
    -- alerts: notifications; catalog: the position of each follower, in permanent rows; lineage: batches.
    topic text NOT NULL,
    -- The receiver: a channel with the index of its URL in KFM_ALERT_URLS (the URL itself may have credentials), a
    -- follower, `files` (the lineage root), or `backend` (the configured OpenLineage backend).
    consumer text NOT NULL,
    -- The alert, collection or batch.
    subject text NOT NULL,
    -- The last change that a follower has applied, or the number of a batch's sent events; 0 for none.
    position @bigint NOT NULL DEFAULT 0,
    payload @json NOT NULL,
    -- Content of the file (Zstandard); null for a backend, which gets the published file.
    content @bytes,
    created_at @time NOT NULL,
    -- Number of the claim whose owner may write the row.
    turn integer NOT NULL DEFAULT 0,
    -- Failed tries since the last success.
    failures integer NOT NULL DEFAULT 0,
    -- Time of the next try; for a claimed row the end of its lease.
    next_attempt_at @time NOT NULL,
    last_error text,
    CONSTRAINT outbox_one_row_per_consumer PRIMARY KEY (topic, subject, consumer),
    CONSTRAINT outbox_topic_is_known CHECK (topic IN ('alerts', 'catalog', 'lineage')),
    CONSTRAINT outbox_counts_are_not_negative CHECK (position >= 0 AND turn >= 0 AND failures >= 0),
    -- The error is for a person; a response's whole body would be too long.
    CONSTRAINT outbox_error_is_bounded CHECK (length(last_error) <= 500),
    CONSTRAINT outbox_error_is_of_a_failure CHECK ((last_error IS NULL) = (failures = 0))
) @strict;

CREATE INDEX outbox_due ON outbox (topic, consumer, next_attempt_at);

-- postgresql: the content is compressed already; compressing it again would only cost time.
ALTER TABLE outbox ALTER COLUMN content SET STORAGE EXTERNAL;

-- A row deleted before its delivery would be a lost message.
@refuse(
    outbox_leaves_when_delivered, DELETE ON outbox, outbox_leaves_when_delivered,
    OLD.topic = 'catalog' OR (OLD.topic = 'alerts' AND OLD.turn = 0)
    OR (
        OLD.topic = 'lineage' AND NOT EXISTS (
            SELECT 1 FROM lineage_batches AS r
            WHERE
                r.batch_id = OLD.subject
                AND CASE OLD.consumer WHEN 'files' THEN r.state = 'published' ELSE r.delivery = 'delivered' END
        )
    )
);
@refuse(
    outbox_begins_undelivered, INSERT ON outbox, outbox_begins_undelivered,
    NEW.position <> 0 OR NEW.turn <> 0 OR NEW.failures <> 0
);
-- A follower beyond the newest change would never get the next change.
@refuse(
    followers_are_behind, UPDATE ON outbox, followers_are_behind,
    NEW.topic = 'catalog' AND NEW.position > 0,
    NEW.position > coalesce(
        (SELECT max(c.change_id) FROM catalog_changes AS c WHERE c.collection_id = NEW.subject), 0
    )
);
@not_truncated(outbox, outbox_leaves_when_delivered);
@not_repeated(outbox, (topic, subject, consumer));
@refuse(
    outbox_keeps_its_content, UPDATE ON outbox, outbox_keeps_its_content,
    @changed(topic, consumer, subject, content, created_at) OR NEW.turn < OLD.turn
);
