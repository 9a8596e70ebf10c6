-- Run-state: did this node already do this in this run (run-state pattern, section 1).
CREATE TABLE run_state (
    dataset_id text NOT NULL,
    run_id text NOT NULL,
    lakefs_branch text NOT NULL,
    inputs_hash text NOT NULL,
    validation_summary jsonb NOT NULL,
    outcome text NOT NULL,
    recorded_at timestamptz NOT NULL,
    -- Where the node's output stands, so that a skip can hand it on.
    artifact_uri text,
    artifact_sha256 text,
    CONSTRAINT run_state_one_record_per_node_and_run PRIMARY KEY (dataset_id, run_id),
    CONSTRAINT run_state_outcome_is_known CHECK (outcome IN ('success', 'failed', 'partial', 'skipped')),
    CONSTRAINT run_state_inputs_hash_is_sha256 CHECK (inputs_hash ~ '^sha256:[0-9a-f]{64}$'),
    CONSTRAINT run_state_validation_summary_is_object CHECK (jsonb_typeof(validation_summary) = 'object'),
    -- A success without its output could not be skipped, only lost.
    CONSTRAINT run_state_success_has_artifact CHECK (outcome <> 'success' OR artifact_sha256 IS NOT NULL)
)
-- ;
CREATE INDEX run_state_by_run ON run_state (run_id)
-- ;
CREATE FUNCTION run_state_keep_success() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run_state_success_is_kept' USING ERRCODE = 'check_violation';
END
$$
-- ;
-- A skip never overwrites the success that it relies on.
CREATE TRIGGER run_state_success_is_kept BEFORE UPDATE ON run_state
FOR EACH ROW WHEN (OLD.outcome = 'success' AND NEW.outcome = 'skipped')
EXECUTE FUNCTION run_state_keep_success()
