-- Run-state: did this node already do this in this run (run-state pattern, section 1).
CREATE TABLE run_state (
    dataset_id text NOT NULL,
    run_id text NOT NULL,
    lakefs_branch text NOT NULL,
    inputs_hash text NOT NULL,
    validation_summary text NOT NULL,
    outcome text NOT NULL,
    recorded_at text NOT NULL,
    -- Where the node's output stands, so that a skip can hand it on.
    artifact_uri text,
    artifact_sha256 text,
    CONSTRAINT run_state_one_record_per_node_and_run PRIMARY KEY (dataset_id, run_id),
    CONSTRAINT run_state_outcome_is_known CHECK (outcome IN ('success', 'failed', 'partial', 'skipped')),
    CONSTRAINT run_state_inputs_hash_is_sha256 CHECK (inputs_hash GLOB 'sha256:*' AND length(inputs_hash) = 71),
    CONSTRAINT run_state_validation_summary_is_object CHECK (json_type(validation_summary) = 'object'),
    -- A success without its output could not be skipped, only lost.
    CONSTRAINT run_state_success_has_artifact CHECK (outcome <> 'success' OR artifact_sha256 IS NOT NULL)
) STRICT
-- ;
CREATE INDEX run_state_by_run ON run_state (run_id)
-- ;
-- A skip never overwrites the success that it relies on.
CREATE TRIGGER run_state_success_is_kept BEFORE UPDATE ON run_state
WHEN OLD.outcome = 'success' AND NEW.outcome = 'skipped'
BEGIN
    SELECT RAISE(ABORT, 'run_state_success_is_kept');
END
