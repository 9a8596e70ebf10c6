-- The schema of 0.1.0, in one text for both databases; kfm_dagster/storage/macros.py says what each @macro stands for.
-- What is recorded stays, no matter who types SQL: triggers keep the owner from changing it, and grants keep a
-- deployment's role from most of it (sql/queries/roles.sql).

-- postgresql: its triggers call a function; this one says the rule, and of which row and change when it is told by what.
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

-- What holds of the deployment as a whole. `id` marks every root of files that is written under this database
-- (kfm_dagster/storage/roots.py). `environment` has worked over it: once prod is one, an override waits for a second
-- person, no matter what a client calls its own environment (WSM-21). `first_day` is the first day that it has partitions
-- of (DAG-12); the earliest counts, because units of days that are no partition any more would never get a run.
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

-- Of two ids a root would be foreign to one half of the processes.
CREATE UNIQUE INDEX deployment_has_one_id ON deployment (fact) WHERE fact = 'id';

-- postgresql: its function of random bytes, as a UUID of version 4.
INSERT INTO deployment (fact, value, at, actor, reason)
VALUES ('id', replace(gen_random_uuid()::text, '-', ''), now(), 'kfm_dagster', 'a new database');

-- sqlite: its function of random bytes, which has no UUID.
INSERT INTO deployment (fact, value, at, actor, reason)
VALUES ('id', lower(hex(randomblob(16))), @now, 'kfm_dagster', 'a new database');

@append_only(deployment, deployment_is_kept, (fact, value));

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger.
@refuse(
    deployment_id_is_not_replaced, INSERT ON deployment, deployment_has_one_id,
    NEW.fact = 'id' AND EXISTS (SELECT 1 FROM deployment AS r WHERE r.fact = 'id')
);

-- Run-state: did this node already do this in this run (run-state pattern, section 1).
CREATE TABLE run_state (
    dataset_id text NOT NULL,
    run_id text NOT NULL,
    lakefs_branch text NOT NULL,
    inputs_hash text NOT NULL,
    validation_summary @json NOT NULL,
    outcome text NOT NULL,
    recorded_at @time NOT NULL,
    -- Where the node's output stands, so that a skip can hand it on.
    artifact_uri text,
    artifact_sha256 text,
    CONSTRAINT run_state_one_record_per_node_and_run PRIMARY KEY (dataset_id, run_id),
    CONSTRAINT run_state_outcome_is_known CHECK (outcome IN ('success', 'failed', 'partial', 'skipped')),
    CONSTRAINT run_state_inputs_hash_is_sha256 CHECK (substr(inputs_hash, 1, 7) = 'sha256:' AND @sha256(substr(inputs_hash, 8))),
    CONSTRAINT run_state_validation_summary_is_object CHECK (@json_type(validation_summary) = 'object'),
    -- A success without its output could not be skipped, only lost.
    CONSTRAINT run_state_success_has_artifact CHECK (outcome <> 'success' OR artifact_sha256 IS NOT NULL)
) @strict;

CREATE INDEX run_state_by_run ON run_state (run_id);

-- A success is not overwritten by other work on the same inputs, and a run that was taken back is over: what may follow
-- is only a rollback's record, or other inputs (RSP-05, PCS-03).
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

-- The ledger (NODD WAL): what became of every object. States and their meaning: kfm_dagster/ledger/state_machine.py.

-- The ledger (NODD WAL): what became of every object. States and their meaning: kfm_dagster/ledger/state_machine.py.
--
-- A trigger refuses with the text "rule: wal_id: from > to".

-- Why a failed record may be tried again; governed codes are added as rows.
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
    -- The extension columns; kfm_dagster/ledger/record.py gives the reason of each.
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
    -- The most units of the next run that claims this one, after a run died that held it with others; NULL: any number.
    batch_limit integer,
    -- Two records of one unit would be ingested twice.
    CONSTRAINT nodd_wal_records_one_record_per_unit PRIMARY KEY (wal_id),
    -- A reason outside the vocabulary could not be counted or governed.
    CONSTRAINT nodd_wal_records_replay_reason_is_governed FOREIGN KEY (replay_reason) REFERENCES replay_reasons (code),
    -- Another spelling of the same id would be another unit.
    CONSTRAINT nodd_wal_records_wal_id_is_uuid
    CHECK (wal_id LIKE '________-____-____-____-____________' AND @hexadecimal(replace(wal_id, '-', ''))),
    -- A status that nobody knows would never be worked on.
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
    -- A success whose Item or provenance is missing would be deleted from the queue and lost.
    CONSTRAINT nodd_wal_records_success_is_complete CHECK (
        status <> 'succeeded' OR (
            integrity_status IN ('ok', 'suspect') AND metadata_status IN ('ok', 'suspect')
            AND stac_status IN ('created', 'updated', 'no-op') AND provenance_status IN ('ok', 'partial')
        )
    ),
    -- Said once more by itself, because reports read stac_status alone.
    CONSTRAINT nodd_wal_records_failed_item_is_no_success CHECK (stac_status <> 'failed' OR status <> 'succeeded'),
    -- A range that ends before it starts finds no partition and breaks every search by time.
    CONSTRAINT nodd_wal_records_time_range_is_ordered CHECK (time_range_start <= time_range_end),
    -- Text in one form only sorts as time; PostgreSQL's type has no form.
    @sqlite(CONSTRAINT nodd_wal_records_times_are_rfc3339 CHECK (
        @rfc3339(event_time) AND @rfc3339(time_range_start) AND @rfc3339(time_range_end) AND @rfc3339(created_at)
        AND @rfc3339(updated_at) AND @rfc3339(last_attempt_at) AND @rfc3339(next_attempt_at)
    ),)
    -- A unit filed under another day would never be claimed by the run of its partition.
    CONSTRAINT nodd_wal_records_partition_is_day_of_start CHECK (partition_key = @utc_day(time_range_start)),
    -- Trouble without a code could be neither selected for replay nor explained.
    CONSTRAINT nodd_wal_records_trouble_has_code
    CHECK (status NOT IN ('failed', 'quarantined') OR last_error_code IS NOT NULL),
    CONSTRAINT nodd_wal_records_error_code_is_bounded CHECK (length(last_error_code) BETWEEN 1 AND 100),
    -- An unbounded text would let one bad object fill the ledger.
    CONSTRAINT nodd_wal_records_error_message_is_bounded CHECK (length(last_error_message) <= 500),
    -- A claim that names no run could not be fenced or recovered.
    CONSTRAINT nodd_wal_records_claim_is_attributed CHECK (
        status <> 'in_progress'
        OR (ingest_run_id IS NOT NULL AND worker_id IS NOT NULL AND last_attempt_at IS NOT NULL)
    ),
    -- A due time means "try again", so only a failed record has one.
    CONSTRAINT nodd_wal_records_due_time_is_of_failed CHECK (next_attempt_at IS NULL OR status = 'failed'),
    -- A change by nobody or for nothing is no audit.
    CONSTRAINT nodd_wal_records_change_is_attributed CHECK (length(changed_by) > 0 AND length(change_reason) > 0),
    CONSTRAINT nodd_wal_records_extension_is_object CHECK (@json_type(extension) = 'object'),
    -- A lane that nobody claims from would never be worked on.
    CONSTRAINT nodd_wal_records_lane_is_known CHECK (lane IN ('live', 'bulk')),
    -- A run of no units would never take it.
    CONSTRAINT nodd_wal_records_batch_limit_is_positive CHECK (batch_limit >= 1)
) @strict;

-- The identity holds for hand-typed records, too, whose wal_id may be any UUID. It also finds records by object.
-- No version and an empty one are two identities, as in wal_id.
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

-- What is due for another attempt.
CREATE INDEX nodd_wal_records_by_due_time ON nodd_wal_records (next_attempt_at) WHERE status = 'failed';

-- Recovery.
CREATE INDEX nodd_wal_records_in_progress ON nodd_wal_records (ingest_run_id, dataset) WHERE status = 'in_progress';

-- Lists and selections.
CREATE INDEX nodd_wal_records_by_selection ON nodd_wal_records (status, dataset, event_time, wal_id);

-- The chunks of each radar in the order of its volumes: which volume one follows, and its newest chunk.
CREATE INDEX nodd_wal_records_by_volume ON nodd_wal_records (
    dataset, (extension ->> 'site'), time_range_start, (extension ->> 'chunk')
) WHERE extension ->> 'chunk' IS NOT NULL;

-- An evaluation looks every half minute: at what was quarantined of late, not at all that ever was.
CREATE INDEX nodd_wal_records_quarantined ON nodd_wal_records (updated_at) WHERE status = 'quarantined';

-- What failed for which reason, the newest first, however much succeeded.
CREATE INDEX nodd_wal_records_failing ON nodd_wal_records (last_error_code, dataset, event_time, wal_id)
WHERE status IN ('failed', 'quarantined');

-- A name that others rely on (docs/sql-views.md): columns are added, none is renamed or taken away.
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
    -- The operator that the unit left the chain at, as in its evidence; governance refuses what metadata_extract has read.
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

-- Every change of a record, written by the triggers below and by nobody else. No foreign key: records cannot go.
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

-- A record begins at the beginning: anything else would be a status without a history (WSM-03).
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

-- A history that goes back in time explains nothing. A writer whose clock is behind keeps the time that stands.
@refuse(
    nodd_wal_records_time_goes_on, UPDATE ON nodd_wal_records, time_goes_on: wal_id: status,
    NEW.updated_at < OLD.updated_at
);

-- attempts counts claims and nothing else (WAL-09).
@refuse(
    nodd_wal_records_attempts_count_claims, UPDATE ON nodd_wal_records, attempts_count_claims: wal_id: status,
    NEW.attempts IS DISTINCT FROM OLD.attempts + CASE WHEN NEW.status = 'in_progress' THEN 1 ELSE 0 END
);

-- A claim, and nothing else, stamps the attempt (WSM-04).
@refuse(
    nodd_wal_records_claim_is_stamped, UPDATE ON nodd_wal_records, claim_is_stamped: wal_id: status,
    NEW.last_attempt_at
    IS DISTINCT FROM CASE WHEN NEW.status = 'in_progress' THEN NEW.updated_at ELSE OLD.last_attempt_at END
);

-- A failed record is tried again for a reason (WSM-07).
@refuse(
    nodd_wal_records_replay_has_reason, UPDATE ON nodd_wal_records, replay_has_reason: wal_id: status,
    NEW.status = 'pending' AND NEW.replay_reason IS NULL
);

-- sqlite: each connection switches its foreign keys on by itself; without them any word would do for a reason.
@refuse(
    nodd_wal_records_reasons_are_looked_up, UPDATE ON nodd_wal_records, foreign_keys_are_on,
    @changed(replay_reason) AND NOT (SELECT p.foreign_keys FROM pragma_foreign_keys AS p)
);

-- A record that is gone has no status and no history to explain it.
@refuse(nodd_wal_records_are_kept, DELETE ON nodd_wal_records, records_are_kept: wal_id: status);
@not_truncated(nodd_wal_records, records_are_kept);

-- Every update is a transition, and every other ordered pair of states is illegal (WSM-02). quarantined > pending and
-- succeeded > pending exist only with a decision on record for exactly this version (WSM-16).
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

-- postgresql: a trigger calls a function, the one above.
CREATE TRIGGER nodd_wal_records_write_first_history AFTER INSERT ON nodd_wal_records
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_write_first_history();

-- postgresql: set-based, too. A nested loop over both tables of a large statement takes its square.
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

-- postgresql: a trigger calls a function, the one above.
CREATE TRIGGER nodd_wal_records_write_history AFTER UPDATE ON nodd_wal_records
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_write_history();

-- sqlite: it knows triggers of rows only.
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

-- sqlite: it knows triggers of rows only.
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

-- What the metrics add up: how often records moved, and where to (WAL-12); how attempts ended, what messages gave, energy
-- (kfm_dagster/telemetry/totals.py). Written in the transaction of what is counted, so that no process loses a count, and read without what was counted.
CREATE TABLE metric_totals (
    metric @id NOT NULL,
    -- What it is about: a dataset, a node; '' of the deployment.
    subject @id NOT NULL,
    -- What kind of it: a status, an error code, a class of seconds; '' where there is one kind. Of nodd_wal_moves the new
    -- status, behind it the reason of a return to pending, or the attempt that a claim began.
    label @id NOT NULL,
    amount @real NOT NULL,
    CONSTRAINT metric_totals_something_happened CHECK (amount > 0),
    -- A label that anything may stand in would make a time series for each.
    CONSTRAINT metric_totals_names_are_bounded
    CHECK (length(metric) BETWEEN 1 AND 60 AND length(subject) <= 320 AND length(label) <= 100)
    -- It has one writer, so everything is added to one row; PostgreSQL has several rows, see below.
    @sqlite(, CONSTRAINT metric_totals_one_row UNIQUE (metric, subject, label))
) @strict;

-- postgresql: only the trigger below, at depth 1, takes rows away; what was added stays.
CREATE TRIGGER metric_totals_only_rise BEFORE UPDATE OR DELETE ON metric_totals
FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION kfm_refuse('totals_only_rise');

-- sqlite: its writer adds to the row.
@refuse(
    metric_totals_only_rise, UPDATE ON metric_totals, totals_only_rise,
    @changed(metric, subject, label) OR NEW.amount < OLD.amount
    OR (OLD.metric = 'nodd_wal_moves' AND NEW.amount <> OLD.amount + 1)
);

-- sqlite: PostgreSQL's trigger adds rows up, which takes those away that it added.
@refuse(metric_totals_are_kept, DELETE ON metric_totals, totals_only_rise);
@not_truncated(metric_totals, totals_only_rise);

-- postgresql: as with the history, what a person types is at depth 0.
CREATE TRIGGER metric_totals_moves_are_the_ledgers BEFORE INSERT ON metric_totals
FOR EACH ROW WHEN (pg_trigger_depth() = 0 AND NEW.metric = 'nodd_wal_moves')
EXECUTE FUNCTION kfm_refuse('moves_are_counted_by_the_ledger');

-- postgresql: each statement adds rows of its own, because writers that add to one row would wait for each other. Some
-- of the statements, drawn by lot so that no rhythm of the writers keeps them all out, add up what is there, and leave out
-- what another one is adding up.
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

-- postgresql: a trigger calls a function, the one above.
CREATE TRIGGER metric_totals_are_added_up AFTER INSERT ON metric_totals
FOR EACH STATEMENT WHEN (random() < 1.0 / 16)
EXECUTE FUNCTION metric_totals_add_up();

-- postgresql: set-based, as the history.
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

-- postgresql: a trigger calls a function, the one above.
CREATE TRIGGER nodd_wal_records_count_new AFTER INSERT ON nodd_wal_records
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_count_moves();

-- postgresql: a trigger calls a function, the one above.
CREATE TRIGGER nodd_wal_records_count_moves AFTER UPDATE ON nodd_wal_records
REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION nodd_wal_count_moves();

-- sqlite: it knows triggers of rows only.
CREATE TRIGGER nodd_wal_records_count_new AFTER INSERT ON nodd_wal_records
BEGIN
    INSERT INTO metric_totals (metric, subject, label, amount)
    VALUES ('nodd_wal_moves', NEW.dataset, NEW.status || ' ', 1)
    ON CONFLICT DO UPDATE SET amount = amount + 1;
END;

-- sqlite: it knows triggers of rows only.
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

-- What a claim costs: the next two guards over many columns are entered only by an update that names one of them. No
-- trigger of the table changes NEW, so a column that is not named keeps its value.

-- Sub-statuses are the operators' findings; they arrive with the end of an attempt (WAL-07).
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

-- What a unit is never changes; a rewritten object is another unit (WAL-04).
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

-- postgresql: a statement that a person types is at depth 0, the triggers above write at depth 1; rows cost nothing.
CREATE TRIGGER nodd_wal_transitions_are_written_by_the_ledger BEFORE INSERT ON nodd_wal_transitions
FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION kfm_refuse('history_is_written_by_the_ledger');

-- sqlite: it knows no depth, so a row is accepted only where the record stands at that version without one; this also
-- stops INSERT OR REPLACE, which deletes rows without a DELETE trigger.
@refuse(
    nodd_wal_transitions_are_written_by_the_ledger, INSERT ON nodd_wal_transitions, history_is_written_by_the_ledger,
    EXISTS (SELECT 1 FROM nodd_wal_transitions AS t WHERE t.wal_id = NEW.wal_id AND t.version = NEW.version)
    OR NOT EXISTS (SELECT 1 FROM nodd_wal_records AS r WHERE r.wal_id = NEW.wal_id AND r.version = NEW.version)
);

@append_only(nodd_wal_transitions, history_is_append_only);

-- Messages received, and what became of each.
CREATE TABLE nodd_wal_deliveries (
    message_id @id NOT NULL,
    queue text NOT NULL,
    -- The newest one: SQS accepts a deletion only with the handle of the last receive.
    receipt_handle text NOT NULL,
    receive_count integer NOT NULL,
    first_received_at @time NOT NULL,
    received_at @time NOT NULL,
    landing_sha256 text NOT NULL,
    sns_message_id text,
    topic_arn text,
    state text NOT NULL,
    settled_at @time,
    -- What is known of the sender, decided when the message is received: a replay from the landing zone asks no more.
    signature text,
    CONSTRAINT nodd_wal_deliveries_one_row_per_message PRIMARY KEY (message_id),
    -- A message in no known state would be counted nowhere (BEY-03).
    CONSTRAINT nodd_wal_deliveries_state_is_known
    CHECK (state IN ('in_flight', 'rejected', 'ignored', 'deleted', 'dead_lettered')),
    CONSTRAINT nodd_wal_deliveries_receives_are_counted CHECK (receive_count >= 1),
    -- Whether a message has left the queue must be told in one way only.
    CONSTRAINT nodd_wal_deliveries_settled_has_time
    CHECK ((state IN ('deleted', 'dead_lettered')) = (settled_at IS NOT NULL)),
    CONSTRAINT nodd_wal_deliveries_signature_is_known CHECK (signature IN ('verified', 'invalid', 'unchecked'))
) @strict;

-- What is still on the queue is little; what has left it grows for ever.
CREATE INDEX nodd_wal_deliveries_by_open_state ON nodd_wal_deliveries (state) WHERE state IN ('in_flight', 'ignored');

@refuse(
    nodd_wal_deliveries_texts_are_bounded, INSERT ON nodd_wal_deliveries, nodd_wal_deliveries_texts_are_bounded,
    length(NEW.message_id) > 320 OR length(NEW.queue) > 320 OR length(NEW.landing_sha256) > 320
    OR length(NEW.sns_message_id) > 320 OR length(NEW.topic_arn) > 320 OR length(NEW.receipt_handle) > 4096
);

-- A message that is forgotten is missing in every balance (BEY-03).
@kept(nodd_wal_deliveries, deliveries_are_kept);

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger. After, because an upsert is an INSERT, too: what
-- replaced a message stands without the rows that it had.
CREATE TRIGGER nodd_wal_deliveries_are_not_replaced AFTER INSERT ON nodd_wal_deliveries
WHEN
    EXISTS (SELECT 1 FROM nodd_wal_delivery_units AS u WHERE u.message_id = NEW.message_id)
    OR EXISTS (SELECT 1 FROM rejected_messages AS r WHERE r.message_id = NEW.message_id)
BEGIN
    SELECT RAISE(ABORT, 'deliveries_are_kept');
END;

-- When a message came first, from where, where its bytes were landed then, and how often it came at least, never
-- changes: evidence and retention look for the bytes there. Only its first receive finds a message verified, because no
-- later one of a verified message is checked.
@refuse(
    nodd_wal_deliveries_identity_is_immutable, UPDATE ON nodd_wal_deliveries, deliveries_identity_is_immutable,
    NEW.receive_count < OLD.receive_count
    OR @changed(message_id, first_received_at, landing_sha256, sns_message_id, topic_arn)
    OR (@changed(signature) AND 'verified' IN (OLD.signature, NEW.signature))
);

-- Which units a message announced. No foreign key to the records: a unit without one is what conservation has to find.
CREATE TABLE nodd_wal_delivery_units (
    message_id @id NOT NULL,
    wal_id @id NOT NULL,
    CONSTRAINT nodd_wal_delivery_units_one_row_per_pair PRIMARY KEY (message_id, wal_id),
    CONSTRAINT nodd_wal_delivery_units_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id)
) @without_rowid;

CREATE INDEX nodd_wal_delivery_units_by_unit ON nodd_wal_delivery_units (wal_id);

-- A message whose unit were taken from it would be deleted from the queue before that unit has ended.
@append_only(nodd_wal_delivery_units, delivery_units_are_append_only);

-- Records of a message that gave no unit, with the reason, kept for a person. What gives no unit costs little, whatever a
-- sender puts into it: its body is in the landed batch alone, its rows are few, and every text has a bound (SEC-08).
CREATE TABLE rejected_messages (
    message_id @id NOT NULL,
    record_index integer NOT NULL,
    reason_code text NOT NULL,
    detail text NOT NULL,
    -- How many records of the message were rejected for the same reason; record_index is the first of them.
    records integer NOT NULL,
    received_at @time NOT NULL,
    CONSTRAINT rejected_messages_one_row_per_record PRIMARY KEY (message_id, record_index),
    CONSTRAINT rejected_messages_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    CONSTRAINT rejected_messages_reason_is_short CHECK (length(reason_code) BETWEEN 1 AND 60),
    CONSTRAINT rejected_messages_detail_is_bounded CHECK (length(detail) <= 500),
    CONSTRAINT rejected_messages_records_are_counted CHECK (records >= 1)
) @strict;

-- What a sender may dispute is kept as it came.
@append_only(rejected_messages, rejections_are_append_only, (message_id, record_index));

-- Records of a message that were understood and give no unit, each with its reason (OPR-19).
CREATE TABLE ignored_records (
    message_id @id NOT NULL,
    record_index integer NOT NULL,
    reason text NOT NULL,
    -- NULL where it is of no one dataset: a test event, a bucket that several datasets share.
    dataset text,
    bucket text,
    -- NULL for what names no object, and for the row that counts what is beyond a message's bound.
    object_key text,
    records integer NOT NULL,
    received_at @time NOT NULL,
    -- A message that comes again says the same.
    CONSTRAINT ignored_records_one_row_per_record PRIMARY KEY (message_id, record_index),
    CONSTRAINT ignored_records_message_is_known
    FOREIGN KEY (message_id) REFERENCES nodd_wal_deliveries (message_id),
    CONSTRAINT ignored_records_index_counts_from_zero CHECK (record_index >= 0),
    CONSTRAINT ignored_records_reason_is_short CHECK (length(reason) BETWEEN 1 AND 60),
    -- S3's bounds of both names, in characters.
    CONSTRAINT ignored_records_names_are_bounded CHECK (length(bucket) <= 255 AND length(object_key) <= 1024),
    -- A count over several records is of no one object.
    CONSTRAINT ignored_records_are_counted CHECK (records >= 1 AND (records = 1 OR object_key IS NULL))
) @strict;

CREATE INDEX ignored_records_by_time ON ignored_records (received_at);

@append_only(ignored_records, ignored_records_are_kept, (message_id, record_index));

-- Recovery and governance: the governance log, kill switches, leases, the order of a key's versions, outcomes.

-- Recovery and governance: leases, the order of a key's versions, lanes, outcomes, the governance log, kill switches.

-- Who decided what, when and why; what a person or a replay did to records is told from here (SEC-02).
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
    -- Of a second person's decision: the proposal that it is on. Of an override that was reviewed: also who approved it.
    proposal_id @bigint,
    approved_by text,
    -- A decision without its change would allow that change at any later time, unseen: both commit together or neither.
    CONSTRAINT governance_log_decision_was_carried_out
    FOREIGN KEY (wal_id, record_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    -- A decision by nobody or for nothing is no audit.
    CONSTRAINT governance_log_entry_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT governance_log_action_is_a_word CHECK (
        length(action) BETWEEN 1 AND 40 AND @word(action)
    ),
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
    CONSTRAINT governance_log_details_are_object CHECK (@json_type(details) = 'object'),
    -- Who approved what, or nobody anything.
    CONSTRAINT governance_log_approval_is_whole
    CHECK (approved_by IS NULL OR (proposal_id IS NOT NULL AND record_version IS NOT NULL)),
    -- A decision on nothing.
    CONSTRAINT governance_log_proposal_is_known FOREIGN KEY (proposal_id) REFERENCES governance_log (entry_id)
) @strict;

CREATE UNIQUE INDEX governance_log_by_decision ON governance_log (wal_id, record_version)
WHERE record_version IS NOT NULL;

CREATE INDEX governance_log_by_action ON governance_log (action, entry_id);

-- The governance of one unit.
CREATE INDEX governance_log_by_unit ON governance_log (wal_id, entry_id) WHERE wal_id IS NOT NULL;

-- A proposal is approved or withdrawn once.
CREATE UNIQUE INDEX governance_log_by_proposal ON governance_log (proposal_id)
WHERE proposal_id IS NOT NULL AND record_version IS NULL;

@append_only(governance_log, governance_log_is_append_only, (entry_id), (wal_id, record_version));

-- sqlite: each connection switches its foreign keys on by itself; without them a decision could stay without its change.
@refuse(
    governance_log_decisions_are_looked_up, INSERT ON governance_log, foreign_keys_are_on,
    NOT (SELECT p.foreign_keys FROM pragma_foreign_keys AS p)
);

-- What an entry `override_proposed` of the governance log is about: units at the version that the proposer saw.
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

-- What was approved is what was proposed: no unit comes to it later.
@refuse(
    override_units_are_of_an_open_proposal, INSERT ON override_units, override_units_are_of_an_open_proposal,
    NOT EXISTS (
        SELECT 1 FROM governance_log AS p WHERE p.entry_id = NEW.proposal_id AND p.action = 'override_proposed'
    )
    OR EXISTS (
        SELECT 1 FROM governance_log AS d WHERE d.proposal_id = NEW.proposal_id AND d.record_version IS NULL
    )
);

-- A decision is on a proposal; an approval is another person's, within a week: later, nobody remembers what was meant.
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

-- An override that names who approved it was approved by them: this unit, at this version, for this action.
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

-- In prod nobody alone takes a unit out of a terminal state (WSM-21). What is started in the Dagster UI, which asks no
-- visitor for a name, does so nowhere (SEC-10).
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

-- Datasets that are switched off: nothing of them is claimed, replayed or written (WAL-10).
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
    -- A switch that was never on would look like a release.
    CONSTRAINT kill_switches_expires_later CHECK (expires_at > engaged_at),
    -- Who switched a dataset on again must be known as well as who switched it off.
    CONSTRAINT kill_switches_release_is_attributed CHECK (
        (released_at IS NULL) = (released_by IS NULL) AND (released_at IS NULL) = (release_reason IS NULL)
    )
) @strict;

-- Two open switches of one dataset could not be told apart when one is released.
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

-- Who holds claims, and until when: one row per run and dataset, so that a heartbeat is one update whatever it holds.
CREATE TABLE nodd_wal_leases (
    ingest_run_id text NOT NULL,
    dataset text NOT NULL,
    worker_id text NOT NULL,
    acquired_at @time NOT NULL,
    renewed_at @time NOT NULL,
    expires_at @time NOT NULL,
    CONSTRAINT nodd_wal_leases_one_row_per_holder PRIMARY KEY (ingest_run_id, dataset),
    -- A lease that is over when it begins would be taken from a living worker.
    CONSTRAINT nodd_wal_leases_lasts CHECK (expires_at > renewed_at)
) @strict;

CREATE INDEX nodd_wal_leases_by_expiry ON nodd_wal_leases (expires_at);

-- A lease is of claims: it begins and goes on while its worker holds one of them, and goes when nobody does.
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

-- What sizes the newest objects of a product had that were announced, by the month that they are of: what the next one is
-- held against (ADR 030). A row stays small, and is written again for as long as its month lasts.
CREATE TABLE size_peers (
    dataset @id NOT NULL,
    -- The groups of the key that tell it from others, `name=value`.
    product @id NOT NULL,
    month text NOT NULL,
    -- In bytes, in the order of their admission.
    sizes @json NOT NULL,
    CONSTRAINT size_peers_one_row_per_product_and_month PRIMARY KEY (dataset, product, month),
    -- A row that grows with its product would be written again and again in full.
    CONSTRAINT size_peers_are_recent
    CHECK (CASE WHEN @json_type(sizes) = 'array' THEN @json_size(sizes) BETWEEN 1 AND 24 ELSE FALSE END)
) @without_rowid;

-- postgresql: room for the next text of a row on its page, so that its key is not written again.
ALTER TABLE size_peers SET (fillfactor = 70);

-- Which products of a feed are followed here: since an object of theirs was announced, and up to which hour somebody has
-- looked. What nobody follows is missed by nobody (BEY-05).
CREATE TABLE nodd_feeds (
    dataset @id NOT NULL,
    -- By the name that the contract's coverage gives it.
    product @id NOT NULL,
    -- When the first announced object began, but no earlier than what was due when it was taken in.
    followed_since @time NOT NULL,
    looked_until @time,
    CONSTRAINT nodd_feeds_one_row_per_product PRIMARY KEY (dataset, product)
) @without_rowid;

-- Days whose bucket was listed to its end: all of them should be here then, whether the feed was followed or not.
CREATE TABLE nodd_listed_days (
    dataset @id NOT NULL,
    day text NOT NULL,
    listed_at @time NOT NULL,
    CONSTRAINT nodd_listed_days_one_row_per_day PRIMARY KEY (dataset, day),
    CONSTRAINT nodd_listed_days_day_is_a_day CHECK (@is_day(day))
) @without_rowid;

-- What is missing of a feed, and what was: it is derived from the ledger, which nothing here changes.
CREATE TABLE nodd_gaps (
    dataset @id NOT NULL,
    product @id NOT NULL,
    -- The hour that lacks something; of a silence or a drop, the one in which it was noticed.
    hour @time NOT NULL,
    kind text NOT NULL,
    expected integer NOT NULL,
    seen integer NOT NULL,
    first_seen @time NOT NULL,
    closed_at @time,
    -- The run that brought what was missing, where one did.
    repaired_by text,
    CONSTRAINT nodd_gaps_one_row_per_hour PRIMARY KEY (dataset, product, hour, kind),
    CONSTRAINT nodd_gaps_kind_is_known CHECK (kind IN ('silence', 'drop', 'hole')),
    CONSTRAINT nodd_gaps_are_counted CHECK (expected >= 1 AND seen >= 0),
    -- A gap that lacks nothing is none.
    CONSTRAINT nodd_gaps_open_lacks_something CHECK (closed_at IS NOT NULL OR seen < expected),
    CONSTRAINT nodd_gaps_close_after_they_open CHECK (closed_at >= first_seen),
    CONSTRAINT nodd_gaps_repaired_are_closed CHECK (repaired_by IS NULL OR closed_at IS NOT NULL)
) @strict;

CREATE INDEX nodd_gaps_open ON nodd_gaps (dataset, kind, hour) WHERE closed_at IS NULL;

-- A product is silent once at a time, and its rate has dropped once.
CREATE UNIQUE INDEX nodd_gaps_one_at_a_time ON nodd_gaps (dataset, product, kind)
WHERE closed_at IS NULL AND kind <> 'hole';

-- A name that others rely on (docs/sql-views.md).
CREATE VIEW kfm_gaps AS
SELECT dataset, product, hour, kind, expected, seen, first_seen, closed_at, repaired_by FROM nodd_gaps;

-- How long after its scan or run each object of a day was announced, counted in classes of time: what percentiles over
-- months are shown from without reading the ledger.
CREATE TABLE nodd_arrivals (
    dataset @id NOT NULL,
    product @id NOT NULL,
    day text NOT NULL,
    objects integer NOT NULL,
    -- Class > objects.
    classes @json NOT NULL,
    -- The same by lead, of a forecast; apart, for it is fifty times as long.
    leads @json NOT NULL,
    CONSTRAINT nodd_arrivals_one_row_per_day PRIMARY KEY (dataset, product, day),
    CONSTRAINT nodd_arrivals_day_is_a_day CHECK (@is_day(day)),
    CONSTRAINT nodd_arrivals_are_counted CHECK (objects >= 1),
    CONSTRAINT nodd_arrivals_classes_is_object CHECK (@json_type(classes) = 'object'),
    CONSTRAINT nodd_arrivals_leads_is_object CHECK (@json_type(leads) = 'object')
) @without_rowid;

-- Which version of an object made which other one obsolete (BEY-01); an older version has one row at most.
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

-- What each success made, so that a later success of the same unit can be compared with it (WAL-11).
CREATE TABLE nodd_wal_outcomes (
    wal_id @id NOT NULL,
    attempt integer NOT NULL,
    at @time NOT NULL,
    run_id text NOT NULL,
    replay_run_id text,
    item_sha256 text,
    provenance_sha256 text,
    code_version text NOT NULL,
    -- The Item that stands is a newer unit's, so its hash says nothing about this one.
    superseded @bool NOT NULL,
    -- The success before it, where that one made something else; an approved repair is meant to differ, anything else is
    -- a defect.
    differs_from integer,
    permitted @bool,
    CONSTRAINT nodd_wal_outcomes_one_row_per_attempt PRIMARY KEY (wal_id, attempt),
    CONSTRAINT nodd_wal_outcomes_record_is_known FOREIGN KEY (wal_id) REFERENCES nodd_wal_records (wal_id),
    CONSTRAINT nodd_wal_outcomes_earlier_outcome_is_known
    FOREIGN KEY (wal_id, differs_from) REFERENCES nodd_wal_outcomes (wal_id, attempt),
    -- A difference that is neither permitted nor a defect would be on no list.
    CONSTRAINT nodd_wal_outcomes_difference_is_judged CHECK ((differs_from IS NULL) = (permitted IS NULL))
) @strict;

-- Alerts look at the newest differences, which are few.
CREATE INDEX nodd_wal_outcomes_differing ON nodd_wal_outcomes (at) WHERE permitted IS NOT NULL;

@append_only(nodd_wal_outcomes, outcomes_are_append_only, (wal_id, attempt));

-- Replays: what a person had done again, on which units, and what came of each (RPL-05).

-- Replays: what a person had done again, on which units, and what came of each (RPL-05).
CREATE TABLE replay_runs (
    replay_run_id @id NOT NULL,
    name text NOT NULL,
    mode text NOT NULL,
    env text NOT NULL,
    state text NOT NULL,
    -- Why a person or the engine paused or stopped it; null while it runs.
    state_reason text,
    spec @json NOT NULL,
    spec_sha256 text NOT NULL,
    batches integer NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    change_ref text,
    -- Differing results that a person had seen when the replay last began to run; one more stops it.
    mismatches_seen integer NOT NULL,
    created_at @time NOT NULL,
    updated_at @time NOT NULL,
    finished_at @time,
    CONSTRAINT replay_runs_one_row_per_replay PRIMARY KEY (replay_run_id),
    CONSTRAINT replay_runs_id_is_short CHECK (length(replay_run_id) BETWEEN 1 AND 60),
    CONSTRAINT replay_runs_name_is_short CHECK (length(name) BETWEEN 1 AND 100),
    -- A mode that nobody carries out would run for ever.
    CONSTRAINT replay_runs_mode_is_known CHECK (mode IN ('failed-only', 'repair-and-replace', 'backfill')),
    CONSTRAINT replay_runs_env_is_known CHECK (env IN ('dev', 'stage', 'prod')),
    -- A state that nobody knows would never be worked on.
    CONSTRAINT replay_runs_state_is_known CHECK (state IN ('planned', 'running', 'paused', 'stopped', 'finished')),
    -- A halt for no reason could not be judged by the one who resumes it.
    CONSTRAINT replay_runs_halt_has_reason CHECK (
        (state IN ('paused', 'stopped')) = (state_reason IS NOT NULL) AND coalesce(length(state_reason), 1) BETWEEN 1 AND 1000
    ),
    CONSTRAINT replay_runs_finish_is_stamped CHECK ((state = 'finished') = (finished_at IS NOT NULL)),
    -- The hash says which selection was approved.
    CONSTRAINT replay_runs_spec_hash_is_sha256 CHECK (@sha256(spec_sha256)),
    CONSTRAINT replay_runs_spec_is_object CHECK (@json_type(spec) = 'object'),
    CONSTRAINT replay_runs_counts_are_counted CHECK (batches >= 0 AND mismatches_seen >= 0),
    -- A replay by nobody or for nothing is no audit.
    CONSTRAINT replay_runs_is_attributed
    CHECK (length(actor) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT replay_runs_change_ref_is_bounded CHECK (length(change_ref) BETWEEN 1 AND 200),
    -- A result that is replaced is for a person to answer for, with a change that can be looked up (RPL-07).
    CONSTRAINT replay_runs_replacing_has_change_ref CHECK (mode <> 'repair-and-replace' OR change_ref IS NOT NULL)
    -- Text in one form only sorts as time; PostgreSQL's type has no form.
    @sqlite(, CONSTRAINT replay_runs_times_are_rfc3339
    CHECK (@rfc3339(created_at) AND @rfc3339(updated_at) AND @rfc3339(finished_at)))
) @strict;

CREATE INDEX replay_runs_by_state ON replay_runs (state, created_at);

-- A replay begins with a selection that nothing has come of yet.
@refuse(
    replay_runs_begin_planned, INSERT ON replay_runs, replay_begins_planned: replay_run_id: state,
    NOT coalesce(NEW.state = 'planned' AND NEW.created_at = NEW.updated_at AND NEW.mismatches_seen = 0, FALSE)
);

-- Every update is a transition, and every other ordered pair of states is illegal.
@refuse(
    replay_runs_transition_is_legal, UPDATE ON replay_runs, illegal_transition: replay_run_id: state,
    NOT coalesce(
        OLD.state || '>' || NEW.state IN (
            'planned>running', 'running>paused', 'running>stopped', 'running>finished', 'paused>running',
            'paused>stopped', 'stopped>running'
        ), FALSE
    )
);

-- What was approved never changes.
@refuse(
    replay_runs_identity_is_immutable, UPDATE ON replay_runs, replay_runs_identity_is_immutable,
    @changed(replay_run_id, name, mode, env, spec, spec_sha256, batches, actor, reason, change_ref, created_at)
);
@kept(replay_runs, replay_runs_are_kept, (replay_run_id));

-- The frozen selection of a replay, and what was decided about each unit when its batch came.
CREATE TABLE replay_units (
    replay_run_id @id NOT NULL,
    -- The order of the selection: event time, then wal_id.
    position integer NOT NULL,
    batch integer NOT NULL,
    wal_id @id NOT NULL,
    dataset text NOT NULL,
    -- How the record stood when it was selected.
    selected_status text NOT NULL,
    selected_version integer NOT NULL,
    state text NOT NULL,
    skip_reason text,
    -- The version that the admission gave the record; its history after that tells what came of it.
    admitted_version integer,
    decided_at @time,
    CONSTRAINT replay_units_one_row_per_position PRIMARY KEY (replay_run_id, position),
    CONSTRAINT replay_units_replay_is_known FOREIGN KEY (replay_run_id) REFERENCES replay_runs (replay_run_id),
    CONSTRAINT replay_units_record_is_known FOREIGN KEY (wal_id) REFERENCES nodd_wal_records (wal_id),
    -- An admission that the record's history does not know has not happened.
    CONSTRAINT replay_units_admission_is_in_history
    FOREIGN KEY (wal_id, admitted_version) REFERENCES nodd_wal_transitions (wal_id, version)
    DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT replay_units_are_counted_from_one CHECK (position >= 1 AND batch >= 1),
    CONSTRAINT replay_units_state_is_known CHECK (state IN ('selected', 'admitted', 'skipped')),
    -- Doing nothing is an outcome with a reason.
    CONSTRAINT replay_units_skip_has_reason CHECK (
        (state = 'skipped') = (skip_reason IS NOT NULL) AND coalesce(length(skip_reason), 1) BETWEEN 1 AND 60
    ),
    CONSTRAINT replay_units_admission_has_version CHECK ((state = 'admitted') = (admitted_version IS NOT NULL)),
    CONSTRAINT replay_units_decision_is_stamped CHECK (
        (state = 'selected') = (decided_at IS NULL) @sqlite(AND @rfc3339(decided_at))
    )
) @strict;

-- A unit that is in a replay twice would be done twice.
CREATE UNIQUE INDEX replay_units_one_row_per_unit ON replay_units (wal_id, replay_run_id);

-- The next batch, and the units that are let in.
CREATE INDEX replay_units_by_state ON replay_units (replay_run_id, state, batch);

-- The rate.
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

-- Each unit is decided about once, while its replay runs.
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

-- What came of each unit: skipped or waiting, else the first end after its admission, else where it stands now.
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

-- Quarantine cases: what a person needs to judge a quarantined unit, and how the case ended (BEY-06).

-- Quarantine cases: what a person needs to judge a quarantined unit, and how the case ended (BEY-06).

-- One case per quarantine: a unit that is released and comes back has another one.
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
) @strict;

-- What waits for its evidence is little, whatever was ever quarantined.
CREATE INDEX quarantine_cases_without_evidence ON quarantine_cases (opened_at, wal_id) WHERE evidence_uri IS NULL;

CREATE INDEX quarantine_cases_by_state ON quarantine_cases (state, opened_at, wal_id);

-- A case begins and is released with its unit, no matter who moves it or how: no quarantine is without a case.
@after(
    nodd_wal_records_open_their_case, UPDATE ON nodd_wal_records, NEW.status = 'quarantined',
    INSERT INTO quarantine_cases (wal_id, quarantined_version, opened_at, reason, state)
    VALUES (NEW.wal_id, NEW.version, NEW.updated_at, NEW.change_reason, 'open')
);
-- Every quarantine is in the governance log, no matter who moves the unit or how (WSM-20): a person's decision stands there
-- before, any other gets its entry here, with the error's own words where the error is why. A worker's name that is
-- longer than an entry takes must not keep a unit out of quarantine.
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

-- What a person discarded is not let in again by a later list of units.
@refuse(
    nodd_wal_records_discarded_stay_out, UPDATE ON nodd_wal_records, discarded_stays_out: wal_id: status,
    OLD.status = 'quarantined',
    EXISTS (
        SELECT 1 FROM quarantine_cases AS c
        WHERE c.wal_id = OLD.wal_id AND c.quarantined_version = OLD.version AND c.state = 'discarded'
    )
);

-- A case is of a quarantine that stands without one, so it comes from the trigger above.
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

-- Evidence comes once, a case is closed once, and only by the decision that the governance log has on it.
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

-- Backfills (DAG-05) are replays by listing: how far each day of each of their datasets is.

-- One day of one dataset. Objects that were known before are `listed - created - requeued`.
CREATE TABLE backfill_days (
    backfill_id @id NOT NULL,
    dataset text NOT NULL,
    day text NOT NULL,
    state text NOT NULL,
    -- Runs that were asked for; the next one needs another name.
    requests integer NOT NULL,
    requested_at @time,
    listed_at @time,
    -- Objects of the listing that is going on or has ended.
    listed @bigint NOT NULL,
    -- Records that this backfill made and let in again, over all its listings of the day.
    created @bigint NOT NULL,
    requeued @bigint NOT NULL,
    -- What the listing saw and gave no unit, once it has ended: by reason how many keys, and the first of them.
    left_out @json,
    CONSTRAINT backfill_days_left_out_is_object CHECK (@json_type(left_out) = 'object'),
    CONSTRAINT backfill_days_one_row_per_day PRIMARY KEY (backfill_id, dataset, day),
    CONSTRAINT backfill_days_backfill_is_known FOREIGN KEY (backfill_id) REFERENCES replay_runs (replay_run_id),
    CONSTRAINT backfill_days_day_is_a_day CHECK (@is_day(day)),
    -- A day in a state that nobody asks for would hold its backfill open for ever.
    CONSTRAINT backfill_days_state_is_known CHECK (state IN ('waiting', 'requested', 'listed')),
    -- A day that counts as listed without ever having been asked for would hide what is missing.
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

-- The undo log: what a run put into the catalog and what stood there before; and which lineage is withdrawn (PCS-03).

-- The undo log: what a run put into the catalog and what stood there before; and which lineage is withdrawn (PCS-03).

-- What stood in Item files before they were overwritten, by the hash of the bytes.
CREATE TABLE catalog_kept_files (
    sha256 text NOT NULL,
    -- Zstandard, and the length in bytes of what it holds.
    content @bytes NOT NULL,
    content_bytes integer NOT NULL,
    CONSTRAINT catalog_kept_files_one_row_per_content PRIMARY KEY (sha256),
    CONSTRAINT catalog_kept_files_sha256_is_hex CHECK (@sha256(sha256)),
    CONSTRAINT catalog_kept_files_length_is_counted CHECK (content_bytes >= 0)
) @strict;

-- postgresql: it would compress what is compressed already, which only costs time.
ALTER TABLE catalog_kept_files ALTER COLUMN content SET STORAGE EXTERNAL;

@append_only(catalog_kept_files, undo_log_is_append_only);
@not_repeated(catalog_kept_files, (sha256));

-- A row per Item and attempt to write it, committed before a file takes its place: a crash leaves a file with its row, or
-- a row without its file. Whether the attempt came through is told by catalog_items.promotion_id.
CREATE TABLE catalog_promotions (
    -- Never given again: an Item that stands by it stands by this write and no other.
    promotion_id @serial(catalog_promotions_one_row_per_promotion),
    -- Null for a write outside of any run, which nothing takes back.
    run_id text,
    dataset text NOT NULL,
    collection_id text NOT NULL,
    item_id text NOT NULL,
    partition_key text NOT NULL,
    -- Whose Item it is: also of one that was withdrawn it can be said which object it came from.
    wal_id @id NOT NULL,
    -- Bytes of the file that was to be put there.
    after_sha256 text NOT NULL,
    -- What the index said before: null for nothing.
    before_promotion_id @bigint,
    before_revision integer,
    -- Bytes of the file that stood there; null where none did.
    before_sha256 text,
    logged_at @time NOT NULL,
    -- When it was undone: then it is nothing to go back to.
    withdrawn_at @time,
    -- What else of the index row was replaced, as catalog_items has it; null where none was, or another than its writer saw.
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
    -- Bytes that nobody has kept cannot be put back.
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

-- The catalog's index: what stands in the published STAC catalog. Files are written from it, never the other way round.
CREATE TABLE catalog_collections (
    collection_id text NOT NULL,
    dataset text NOT NULL,
    title text NOT NULL,
    CONSTRAINT catalog_collections_one_row_each PRIMARY KEY (collection_id)
) @strict;

CREATE TABLE catalog_items (
    collection_id text NOT NULL,
    item_id text NOT NULL,
    -- Home of the Item's file: UTC day, and the page of the day that links it.
    partition_key text NOT NULL,
    page integer NOT NULL,
    content_sha256 text NOT NULL,
    object_uri text NOT NULL,
    wal_id text NOT NULL,
    -- What orders re-issues of one Item: the contract's group, then S3's sequencer of one key.
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
    -- Which unit's Item stood before: what makes an Item a revision of an earlier one in the lineage.
    replaces_wal_id text,
    -- The promotion that an Item stands by. No Item stands without its undo record.
    promotion_id @bigint,
    -- In the order of pages: a batch fills a page or two, so its rows lie together, as do those that a page's links and
    -- extent are made from. In the order of Items each row of a batch would be a page of the database for itself.
    CONSTRAINT catalog_items_in_order_of_pages PRIMARY KEY (collection_id, partition_key, page, item_id),
    -- An Item stands once, whatever wrote it.
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

-- Serves the search for Items whose unit has ended without lineage.
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

-- An Item leaves the index when the promotion that it stands by is undone, which the log says first (ADR 012).
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

-- One row per page, recounted from its Items: extents of days and collections without a look at every Item.
CREATE TABLE catalog_pages (
    collection_id text NOT NULL,
    partition_key text NOT NULL,
    page integer NOT NULL,
    items integer NOT NULL,
    west @real,
    south @real,
    east @real,
    north @real,
    -- The same longitudes counted from 0 to 360 degrees, for what lies around the antimeridian.
    west_360 @real,
    east_360 @real,
    over_antimeridian integer NOT NULL,
    over_greenwich integer NOT NULL,
    start_at @time NOT NULL,
    end_at @time NOT NULL,
    -- Of its Items' promotions: which run wrote the collection last.
    newest_promotion @bigint,
    CONSTRAINT catalog_pages_one_row_each PRIMARY KEY (collection_id, partition_key, page),
    CONSTRAINT catalog_pages_are_not_empty CHECK (items >= 1)
) @without_rowid;

-- How many Items of a collection have a value: exact summaries without a look at every Item.
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

-- What changed in the catalog, in the order in which it was committed: a collection has one writer at a time.
CREATE TABLE catalog_changes (
    change_id @serial(catalog_changes_one_row_per_change),
    collection_id text NOT NULL,
    item_id text NOT NULL,
    partition_key text NOT NULL,
    kind text NOT NULL,
    -- Of the Item as it has stood since.
    content_sha256 text,
    changed_at @time NOT NULL,
    CONSTRAINT catalog_changes_kind_is_known CHECK (kind IN ('created', 'updated', 'withdrawn')),
    CONSTRAINT catalog_changes_content_is_sha256 CHECK (@sha256(content_sha256)),
    -- What was withdrawn stands no more.
    CONSTRAINT catalog_changes_content_is_of_what_stands CHECK ((content_sha256 IS NULL) = (kind = 'withdrawn'))
) @strict;

CREATE INDEX catalog_changes_by_collection ON catalog_changes (collection_id, change_id);

@append_only(catalog_changes, catalog_changes_are_append_only, (change_id));

-- What each subscription of announcements.yaml was sent of an Item: its newest event there, and what became of it.
CREATE TABLE announcements (
    subscription text NOT NULL,
    collection_id text NOT NULL,
    item_id text NOT NULL,
    -- The change that the event reports.
    change_id @bigint NOT NULL,
    kind text NOT NULL,
    event_id text NOT NULL,
    -- open: to be sent, or sent and not known to be taken; silent: of a kind that the subscription does not want.
    state text NOT NULL,
    -- Whether the receiver knows the Item, or was not to be notified that it is there.
    known @bool NOT NULL,
    -- How often the receiver said no to this event while it took others.
    attempts integer NOT NULL DEFAULT 0,
    failing_since @time,
    last_error text,
    -- The event as it was refused, to be sent again when somebody says so.
    body text,
    -- Events of the Item that were taken, and when the last one was.
    taken integer NOT NULL DEFAULT 0,
    taken_at @time,
    CONSTRAINT announcements_one_row_per_item PRIMARY KEY (subscription, collection_id, item_id),
    CONSTRAINT announcements_kind_is_known CHECK (kind IN ('created', 'updated', 'withdrawn')),
    CONSTRAINT announcements_state_is_known CHECK (state IN ('open', 'sent', 'refused', 'silent')),
    CONSTRAINT announcements_counts_are_not_negative CHECK (change_id >= 1 AND attempts >= 0 AND taken >= 0),
    CONSTRAINT announcements_taken_have_a_time CHECK ((taken = 0) = (taken_at IS NULL)),
    CONSTRAINT announcements_sent_were_taken CHECK (state <> 'sent' OR taken >= 1),
    CONSTRAINT announcements_error_is_bounded CHECK (length(last_error) <= 500),
    -- Nothing is given up without a reason, and all that is can be sent again.
    CONSTRAINT announcements_refused_are_kept CHECK (
        (state = 'refused') = (body IS NOT NULL) AND (state <> 'refused' OR last_error IS NOT NULL)
    )
) @without_rowid;

CREATE INDEX announcements_by_state ON announcements (subscription, state, taken_at);

-- What was sent stays sent: a row goes on to a later change, and to no other Item.
@refuse(
    announcements_go_on, UPDATE ON announcements, announcements_go_on,
    @changed(subscription, collection_id, item_id) OR NEW.change_id < OLD.change_id OR NEW.taken < OLD.taken
);
@kept(announcements, announcements_are_kept, (subscription, collection_id, item_id));

-- Lineage: which unit's OpenLineage run and PROV activity stand in which file (transactional outbox of both paths).
CREATE TABLE lineage_batches (
    batch_id text NOT NULL,
    path text NOT NULL,
    dataset text NOT NULL,
    run_id text NOT NULL,
    -- Where readers find the file, relative to the lineage root.
    href text NOT NULL,
    sha256 text NOT NULL,
    unit_count integer NOT NULL,
    state text NOT NULL,
    -- What an OpenLineage backend got of it.
    delivery text NOT NULL,
    created_at @time NOT NULL,
    published_at @time,
    -- The batch that withdrew this one, why, and when. What it told stays in its file.
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
    -- Only OpenLineage has a backend, and it gets what readers see.
    CONSTRAINT lineage_batches_delivers_openlineage CHECK (delivery = 'none' OR path = 'openlineage'),
    CONSTRAINT lineage_batches_delivers_published CHECK (delivery <> 'delivered' OR state = 'published'),
    CONSTRAINT lineage_batches_sha256_is_hex CHECK (@sha256(sha256)),
    CONSTRAINT lineage_batches_is_not_empty CHECK (unit_count > 0),
    -- Deferred, because which batches a transaction withdraws is known once their rows are in.
    CONSTRAINT lineage_batches_invalidation_is_published
    FOREIGN KEY (invalidated_by) REFERENCES lineage_batches (batch_id) DEFERRABLE INITIALLY DEFERRED,
    -- Nothing can be withdrawn by its own publication.
    CONSTRAINT lineage_batches_invalidation_is_of_another_batch CHECK (invalidated_by <> batch_id),
    CONSTRAINT lineage_batches_invalidation_is_whole CHECK (
        (invalidated_by IS NULL) = (invalidated_at IS NULL) AND (invalidated_by IS NULL) = (invalidation_reason IS NULL)
    ),
    CONSTRAINT lineage_batches_invalidation_reason_is_bounded CHECK (length(invalidation_reason) BETWEEN 1 AND 200)
) @strict;

CREATE INDEX lineage_batches_by_run ON lineage_batches (run_id, dataset);

@kept(lineage_batches, lineage_is_append_only, (batch_id), (href));

-- What a batch told stays; its way to readers and to the backend goes on, never back, and it is withdrawn once.
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
    -- Empty for the first publication of a unit; a repair that changed the Item adds one under its replay's id.
    revision text NOT NULL,
    -- OpenLineage run id or PROV activity id, as the path says.
    lineage_id text NOT NULL,
    batch_id text NOT NULL,
    -- What the Item said; null where the unit registered none.
    content_sha256 text,
    -- A unit whose lineage is told twice would have duplicate edges.
    CONSTRAINT lineage_emissions_once_per_unit_path_and_revision PRIMARY KEY (wal_id, path, revision),
    -- A run or an activity leads back to one record.
    CONSTRAINT lineage_emissions_id_names_one_unit UNIQUE (lineage_id),
    CONSTRAINT lineage_emissions_path_is_known CHECK (path IN ('openlineage', 'prov')),
    CONSTRAINT lineage_emissions_revision_is_bounded CHECK (length(revision) <= 200),
    CONSTRAINT lineage_emissions_content_is_sha256 CHECK (@sha256(content_sha256)),
    -- A unit counts as told only while the batch that holds it is on record. Deferred, because which units a batch holds
    -- is known once their rows are in.
    CONSTRAINT lineage_emissions_have_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id)
    DEFERRABLE INITIALLY DEFERRED
) @without_rowid;

CREATE INDEX lineage_emissions_by_batch ON lineage_emissions (batch_id);

@append_only(lineage_emissions, lineage_is_append_only);
@not_repeated(lineage_emissions, (wal_id, path, revision));

-- sqlite: INSERT OR REPLACE deletes rows without a DELETE trigger. A repetition is for the trigger above.
@refuse(
    lineage_emissions_ids_are_not_replaced, INSERT ON lineage_emissions, lineage_emissions_id_names_one_unit,
    EXISTS (
        SELECT 1 FROM lineage_emissions AS r
        WHERE
            r.lineage_id = NEW.lineage_id
            AND (r.wal_id, r.path, r.revision) IS DISTINCT FROM (NEW.wal_id, NEW.path, NEW.revision)
    )
);

-- Attempts that failed, no matter who says so: lineage has each once, with the batch that holds it.
CREATE TABLE lineage_failures (
    wal_id @id NOT NULL,
    -- Of the record's move to failed.
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

-- The idempotent-node pattern: what a node intended, what it last applied, and what it made (IEN-03).
CREATE TABLE etl_wal (
    wal_id @bigserial(etl_wal_one_row_per_intent),
    run_id @uuid NOT NULL,
    node text NOT NULL,
    step text NOT NULL,
    -- All that is needed to run the node again: input manifest, parameters, code, context.
    payload @json NOT NULL,
    content_hash text NOT NULL,
    status text NOT NULL,
    started_at @time NOT NULL DEFAULT @now,
    applied_at @time,
    -- What its node claimed in the ledger with the effect, as an entry of the manifest: URI, and SHA-256 of the units.
    claimed @json,
    CONSTRAINT etl_wal_status_is_known CHECK (status IN ('PENDING', 'APPLIED', 'SKIPPED', 'FAILED')),
    CONSTRAINT etl_wal_content_hash_is_sha256 CHECK (@sha256(content_hash)),
    -- PostgreSQL has types of both.
    @sqlite(CONSTRAINT etl_wal_run_id_is_uuid CHECK (
        run_id LIKE '________-____-____-____-____________' AND @hexadecimal(replace(run_id, '-', ''))
    ),)
    CONSTRAINT etl_wal_payload_is_object CHECK (@json_type(payload) = 'object'),
    -- An effect without its time, or a time without an effect, would be told wrongly for ever.
    CONSTRAINT etl_wal_applied_has_a_time CHECK ((status = 'APPLIED') = (applied_at IS NOT NULL)),
    -- Claimed without an effect, units would be told as taken up by a run that gave them back.
    CONSTRAINT etl_wal_claimed_is_applied
    CHECK (claimed IS NULL OR (status = 'APPLIED' AND @json_type(claimed) = 'object'))
) @strict;

-- Whatever the workers believe, one content takes effect once.
CREATE UNIQUE INDEX etl_wal_content_is_applied_once ON etl_wal (content_hash) WHERE status = 'APPLIED';

CREATE INDEX etl_wal_unresolved ON etl_wal (node, wal_id) WHERE status IN ('PENDING', 'FAILED');

-- Serves what a node has applied: a day's batches, without the payloads of all others.
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
    -- Null while it is what its node last made.
    valid_to @time,
    CONSTRAINT node_output_one_row_per_content PRIMARY KEY (content_hash),
    CONSTRAINT node_output_content_hash_is_sha256 CHECK (@sha256(content_hash)),
    -- PostgreSQL has a type of it.
    @sqlite(CONSTRAINT node_output_record_is_json CHECK (json_valid(record)),
    CONSTRAINT node_output_lineage_is_json CHECK (lineage IS NULL OR json_valid(lineage)),)
    -- A window that ends before it begins holds no moment.
    CONSTRAINT node_output_window_is_one CHECK (valid_to IS NULL OR valid_to >= valid_from)
) @strict;

-- Outputs are immutable; only the end of their validity moves, when a newer one takes over or their content comes back.
@refuse(
    node_output_is_immutable, UPDATE ON node_output, node_output_is_immutable,
    @changed(content_hash, record, lineage, valid_from) OR (OLD.valid_to IS NOT NULL AND NEW.valid_to IS NOT NULL)
);
@kept(node_output, node_output_is_kept, (content_hash));

-- What counts as applied can be handed on.
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
    -- A checkpoint that names nothing would skip work that was never done.
    CONSTRAINT etl_checkpoint_names_an_output
    FOREIGN KEY (last_applied_hash) REFERENCES node_output (content_hash)
) @strict;

@kept(etl_checkpoint, checkpoints_are_kept);

-- A checkpoint on what was never applied would skip work that was never done.
@refuse(
    etl_checkpoint_begins_with_what_was_applied, INSERT ON etl_checkpoint, checkpoints_name_what_was_applied,
    NOT EXISTS (SELECT 1 FROM etl_wal AS w WHERE w.content_hash = NEW.last_applied_hash AND w.status = 'APPLIED')
);
@refuse(
    etl_checkpoint_names_what_was_applied, UPDATE ON etl_checkpoint, checkpoints_name_what_was_applied,
    NEW.node IS DISTINCT FROM OLD.node
    OR NOT EXISTS (SELECT 1 FROM etl_wal AS w WHERE w.content_hash = NEW.last_applied_hash AND w.status = 'APPLIED')
);

-- Steps: how each intent ended, what went through it and what that took; and which lineage batch tells it (IEN-11).
CREATE TABLE etl_steps (
    wal_id @bigint NOT NULL,
    status text NOT NULL,
    ended_at @time NOT NULL,
    -- What was measured; null where nobody could.
    seconds @real,
    cpu_seconds @real,
    rows_in @bigint,
    rows_out @bigint,
    bytes_in @bigint,
    bytes_out @bigint,
    energy_kwh @real,
    carbon_gco2e @real,
    -- What measured the energy.
    measured_by text,
    cost_usd @real,
    -- Kind of the error; its text may name what is not for everybody.
    error text,
    -- OpenLineage batch that tells it; null until it is told.
    batch_id text,
    -- A failed intent may end once more, when a replay carries it out.
    CONSTRAINT etl_steps_one_row_per_end PRIMARY KEY (wal_id, status),
    CONSTRAINT etl_steps_have_an_intent FOREIGN KEY (wal_id) REFERENCES etl_wal (wal_id),
    CONSTRAINT etl_steps_have_ended CHECK (status IN ('APPLIED', 'SKIPPED', 'FAILED')),
    CONSTRAINT etl_steps_measures_are_not_negative CHECK (
        seconds >= 0 AND cpu_seconds >= 0 AND rows_in >= 0 AND rows_out >= 0 AND bytes_in >= 0 AND bytes_out >= 0
        AND energy_kwh >= 0 AND carbon_gco2e >= 0 AND cost_usd >= 0
    ),
    -- A figure of energy without its method can be compared with nothing.
    CONSTRAINT etl_steps_energy_has_a_method CHECK (
        (energy_kwh IS NULL) = (measured_by IS NULL) AND (carbon_gco2e IS NULL) = (measured_by IS NULL)
    ),
    CONSTRAINT etl_steps_error_is_of_a_failure CHECK (error IS NULL OR status = 'FAILED'),
    CONSTRAINT etl_steps_error_is_bounded CHECK (length(error) <= 200),
    CONSTRAINT etl_steps_are_published_in_a_batch FOREIGN KEY (batch_id) REFERENCES lineage_batches (batch_id)
) @without_rowid;

CREATE INDEX etl_steps_unpublished ON etl_steps (wal_id) WHERE batch_id IS NULL;

-- A step is measured once and told once.
@refuse(
    etl_steps_are_only_published, UPDATE ON etl_steps, etl_steps_are_only_published,
    OLD.batch_id IS NOT NULL
    OR @changed(
        wal_id, status, ended_at, seconds, cpu_seconds, rows_in, rows_out, bytes_in, bytes_out, energy_kwh,
        carbon_gco2e, measured_by, cost_usd, error
    )
);
@kept(etl_steps, etl_steps_are_kept, (wal_id, status));

-- Stages: how each operator of a run went, attempt by attempt, and the chained record of everything that moved it.
CREATE TABLE stage_audit (
    -- Number of the last line of the row.
    seq @bigint NOT NULL,
    at @time NOT NULL,
    run_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    kind text NOT NULL,
    -- What happened: a move, a gate, a stop.
    event text NOT NULL,
    -- Text, because the hash is of this text.
    details text NOT NULL,
    -- The lines before it that say what went well, as an array of their kind, event and details.
    earlier text NOT NULL DEFAULT '[]',
    -- Of the line before all of these.
    previous_hash text NOT NULL,
    -- SHA-256 of the last line and the hash before it: a line that is changed, taken out or put in shows.
    hash text NOT NULL,
    CONSTRAINT stage_audit_one_line_per_number PRIMARY KEY (seq),
    CONSTRAINT stage_audit_kind_is_known CHECK (
        kind IN ('transition', 'gate', 'stop', 'retry', 'checkpoint', 'compensation', 'override', 'replay')
    ),
    CONSTRAINT stage_audit_event_is_named CHECK (length(event) BETWEEN 1 AND 100),
    CONSTRAINT stage_audit_details_are_object CHECK (@json_type(@as_json(details)) = 'object'),
    CONSTRAINT stage_audit_earlier_is_array CHECK (@json_type(@as_json(earlier)) = 'array'),
    CONSTRAINT stage_audit_hash_is_sha256 CHECK (@sha256(hash)),
    -- Two lines after one would be two histories.
    CONSTRAINT stage_audit_does_not_fork UNIQUE (previous_hash)
) @strict;

CREATE INDEX stage_audit_by_stage ON stage_audit (run_id, stage, attempt, kind, event);

CREATE INDEX stage_audit_by_time ON stage_audit (at, seq);

CREATE INDEX stage_audit_by_kind ON stage_audit (kind, at);

-- An evaluation looks every half minute, and must find what is wrong without reading all that is right.
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
    -- What the stage was given, as hashes; a retry is given the same.
    input_hashes @json NOT NULL,
    opened_at @time NOT NULL,
    started_at @time,
    ended_at @time,
    error_class text,
    -- Gates whose degraded path was taken, and E_SYNC; an output with any is [Restricted].
    restricted @json NOT NULL DEFAULT '[]',
    -- What was saved before the stage was left.
    checkpoint_uri text,
    output_sha256 text,
    -- What was undone outside the database.
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
    -- A checkpoint without its digest could not be compared with anything.
    CONSTRAINT stage_state_checkpoint_has_a_digest CHECK (checkpoint_uri IS NULL OR output_sha256 IS NOT NULL),
    CONSTRAINT stage_state_compensation_is_object
    CHECK (compensation IS NULL OR @json_type(compensation) = 'object'),
    CONSTRAINT stage_state_rollback_rests_on_something
    CHECK (state <> 'rolled_back' OR compensation IS NOT NULL OR checkpoint_uri IS NOT NULL)
) @without_rowid;

CREATE INDEX stage_state_by_time ON stage_state (opened_at);

CREATE INDEX stage_state_unfinished ON stage_state (state, run_id) WHERE state IN ('pending', 'running');

-- One attempt after the other.
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

-- Another key would be another trigger; after a failure other inputs would be another question (PCS-05).
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

-- A move that nobody can read of did not happen as it should (PCS-15).
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

-- A name that others rely on (docs/sql-views.md): what a run did for a dataset, by the last attempt of each of its stages.
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

-- What the kernel and servers said of a machine's clock: what the clock is judged by, and its stability (PCS-10, PCS-17).
CREATE TABLE clock_readings (
    -- The order of taking: times cannot give it, because they are the clock's that is in question.
    reading_id @serial(clock_readings_one_row_per_reading),
    -- Which clock: the boot id of its kernel.
    clock_id text NOT NULL,
    at @time NOT NULL,
    -- `kernel`, or `date:` and a server's host.
    source text NOT NULL,
    -- True time minus the clock's, which lies within offset +- uncertainty.
    offset_seconds @real,
    uncertainty_seconds @real,
    -- The source's own word, before any rule.
    state text NOT NULL,
    CONSTRAINT clock_readings_clock_is_named CHECK (length(clock_id) BETWEEN 1 AND 100),
    CONSTRAINT clock_readings_source_is_named CHECK (length(source) BETWEEN 1 AND 300),
    CONSTRAINT clock_readings_state_is_known CHECK (state IN ('locked', 'unlocked', 'unknown')),
    -- An offset without its uncertainty proves nothing.
    CONSTRAINT clock_readings_offset_has_bounds CHECK ((offset_seconds IS NULL) = (uncertainty_seconds IS NULL)),
    -- No clock is three centuries off; what is beyond is no number (infinity, NaN).
    CONSTRAINT clock_readings_offset_is_finite
    CHECK (offset_seconds BETWEEN -1e10 AND 1e10 AND uncertainty_seconds BETWEEN 0 AND 1e10),
    -- Who keeps a clock knows by how much it is wrong.
    CONSTRAINT clock_readings_locked_has_offset CHECK (state <> 'locked' OR offset_seconds IS NOT NULL)
) @strict;

CREATE INDEX clock_readings_by_clock ON clock_readings (clock_id, reading_id);

CREATE INDEX clock_readings_by_time ON clock_readings (at);

@refuse(clock_readings_are_append_only, UPDATE ON clock_readings, clock_readings_are_append_only);
@not_truncated(clock_readings, clock_readings_are_append_only);
@not_replaced(clock_readings, clock_readings_are_append_only, (reading_id));

-- Retention may take old readings; the last 30 days are what the clock is judged by and what its stability is told from.
@refuse(
    clock_readings_are_kept_for_a_month, DELETE ON clock_readings, clock_readings_are_kept_for_a_month,
    OLD.at > (SELECT @days_before(max(r.at), 30) FROM clock_readings AS r)
);

-- Alerts over the stages: what fires since when, who was told of it and where, who took it on (PCS-18).
CREATE TABLE alerts (
    -- Never given again: who acknowledges a number acknowledges what was told under it.
    alert_id @serial(alerts_one_row_per_alert),
    rule text NOT NULL,
    -- What it is about; with the rule it is the key under which no second alert is open.
    subject text NOT NULL,
    state text NOT NULL DEFAULT 'firing',
    level text NOT NULL,
    opened_at @time NOT NULL,
    -- Since when it has this level: escalation counts from here.
    level_since @time NOT NULL,
    -- The last evaluation that found it, and the events within the rule's window that this one counted.
    last_seen_at @time NOT NULL,
    observed integer NOT NULL,
    -- The newest of these events: when, in which run, by which stage or source.
    last_event_at @time NOT NULL,
    run_id text,
    place text NOT NULL,
    -- When it was last told, and how often.
    last_notified_at @time,
    notifications integer NOT NULL DEFAULT 0,
    -- The last acknowledgement; escalation makes it fire again all the same.
    acknowledged_at @time,
    acknowledged_by text,
    acknowledged_why text,
    resolved_at @time,
    -- Which rules there are, the evaluator's query and alerts.yaml say; a list here would be one more to keep.
    CONSTRAINT alerts_rule_is_a_word CHECK (length(rule) BETWEEN 1 AND 60 AND @word(rule)),
    CONSTRAINT alerts_subject_is_named CHECK (length(subject) BETWEEN 1 AND 300),
    CONSTRAINT alerts_place_is_named CHECK (length(place) BETWEEN 1 AND 300),
    CONSTRAINT alerts_state_is_known CHECK (state IN ('firing', 'acknowledged', 'resolved')),
    CONSTRAINT alerts_level_is_known CHECK (level IN ('info', 'warning', 'critical')),
    -- Nothing fires without an event.
    CONSTRAINT alerts_events_are_counted CHECK (observed >= 1),
    CONSTRAINT alerts_notifications_are_counted CHECK (notifications >= 0 AND (notifications = 0) = (last_notified_at IS NULL)),
    CONSTRAINT alerts_acknowledgement_is_whole CHECK (
        (acknowledged_at IS NULL) = (acknowledged_by IS NULL) AND (acknowledged_at IS NULL) = (acknowledged_why IS NULL)
        AND (state <> 'acknowledged' OR acknowledged_at IS NOT NULL)
    ),
    CONSTRAINT alerts_resolution_has_a_time CHECK ((state = 'resolved') = (resolved_at IS NOT NULL))
) @strict;

-- Two evaluators at once open one alert.
CREATE UNIQUE INDEX alerts_one_open_per_key ON alerts (rule, subject) WHERE state <> 'resolved';

CREATE INDEX alerts_by_key ON alerts (rule, subject, last_notified_at);

-- An alert begins to fire; it is resolved for good, its level only rises, and it is taken on by somebody or not at all.
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
    -- Only what has become worse fires again after somebody took it on.
    OR (OLD.state = 'acknowledged' AND NEW.state = 'firing' AND NEW.level = OLD.level)
    OR (
        @changed(acknowledged_at, acknowledged_by, acknowledged_why)
        AND NOT (OLD.state = 'firing' AND NEW.state = 'acknowledged')
    )
);
@kept(alerts, alerts_are_kept, (alert_id));

-- What is delivered later, at least once: a row for each subject that a consumer has not got yet.
CREATE TABLE outbox (
    -- alerts: notifications; catalog: how far each follower has come, in rows that stay; lineage: batches.
    topic text NOT NULL,
    -- Who is to get it: a channel and which URL of KFM_ALERT_URLS, which itself may hold credentials; a follower;
    -- files, the lineage root, where readers look, or backend, the configured OpenLineage backend.
    consumer text NOT NULL,
    -- What it is about: an alert, a collection, a batch.
    subject text NOT NULL,
    -- The last change that a follower has taken; how many events of a batch were sent; 0 for none.
    position @bigint NOT NULL DEFAULT 0,
    payload @json NOT NULL,
    -- What a file will say (Zstandard). Null for a backend, which gets what readers see.
    content @bytes,
    created_at @time NOT NULL,
    -- Number of the claim whose owner may write the row.
    turn integer NOT NULL DEFAULT 0,
    -- Tries that failed since the last that did not.
    failures integer NOT NULL DEFAULT 0,
    -- When it is tried next; while it is claimed, when another may take over.
    next_attempt_at @time NOT NULL,
    last_error text,
    CONSTRAINT outbox_one_row_per_consumer PRIMARY KEY (topic, subject, consumer),
    CONSTRAINT outbox_topic_is_known CHECK (topic IN ('alerts', 'catalog', 'lineage')),
    CONSTRAINT outbox_counts_are_not_negative CHECK (position >= 0 AND turn >= 0 AND failures >= 0),
    -- An error is for a person to read, not for keeping a response's body.
    CONSTRAINT outbox_error_is_bounded CHECK (length(last_error) <= 500),
    CONSTRAINT outbox_error_is_of_a_failure CHECK ((last_error IS NULL) = (failures = 0))
) @strict;

CREATE INDEX outbox_due ON outbox (topic, consumer, next_attempt_at);

-- postgresql: it would compress what is compressed already, which only costs time.
ALTER TABLE outbox ALTER COLUMN content SET STORAGE EXTERNAL;

-- A row that went before its delivery would be a message lost.
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
-- A follower beyond the newest change would never get the next one.
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
