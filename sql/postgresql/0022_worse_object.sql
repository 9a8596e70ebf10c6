-- An alert for an object that is worse than what stands (OPR-20).
ALTER TABLE alerts DROP CONSTRAINT alerts_rule_is_known
-- ;
ALTER TABLE alerts ADD CONSTRAINT alerts_rule_is_known CHECK (
    rule IN (
        'state_flapping', 'retry_storm', 'covariance', 'path_desync', 'unlock', 'gate_breach', 'replay_divergence',
        'worse_object'
    )
)
-- ;
-- An evaluation looks every half minute: at what was quarantined of late, not at all that ever was.
CREATE INDEX nodd_wal_records_quarantined ON nodd_wal_records (updated_at) WHERE status = 'quarantined'
