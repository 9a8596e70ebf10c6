-- What a claim costs. Two guards over many columns are entered only by an update that names one of these columns
-- (UPDATE OF): a change of status that sets none of them has none of them to compare. No trigger of the table changes
-- NEW, so a column that is not named keeps its value.

DROP TRIGGER nodd_wal_records_findings_end_an_attempt
-- ;
-- Sub-statuses are the operators' findings; they arrive with the end of an attempt (WAL-07).
CREATE TRIGGER nodd_wal_records_findings_end_an_attempt
BEFORE UPDATE OF
    integrity_status, metadata_status, stac_status, provenance_status, stac_item_id, stac_collection_id, stac_item_href
ON nodd_wal_records
WHEN OLD.status <> 'in_progress' AND (
    NEW.integrity_status, NEW.metadata_status, NEW.stac_status, NEW.provenance_status,
    NEW.stac_item_id, NEW.stac_collection_id, NEW.stac_item_href
) IS NOT (
    OLD.integrity_status, OLD.metadata_status, OLD.stac_status, OLD.provenance_status,
    OLD.stac_item_id, OLD.stac_collection_id, OLD.stac_item_href
)
BEGIN
    SELECT json_extract(
        '{}', 'findings_end_an_attempt: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'findings_end_an_attempt');
END
-- ;
DROP TRIGGER nodd_wal_records_identity_is_immutable
-- ;
-- What a unit is never changes; a rewritten object is another unit (WAL-04).
CREATE TRIGGER nodd_wal_records_identity_is_immutable
BEFORE UPDATE OF
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, created_at,
    object_version, object_size, sequencer, partition_key, priority, schema_version, sqs_message_id, sns_message_id,
    topic_arn, subject, extension
ON nodd_wal_records
WHEN (
    NEW.wal_id, NEW.dataset, NEW.object_uri, NEW.provider, NEW.queue, NEW.event_time, NEW.time_range_start,
    NEW.time_range_end, NEW.created_at, NEW.object_version, NEW.object_size, NEW.sequencer, NEW.partition_key,
    NEW.priority, NEW.schema_version, NEW.sqs_message_id, NEW.sns_message_id, NEW.topic_arn, NEW.subject,
    NEW.extension
) IS NOT (
    OLD.wal_id, OLD.dataset, OLD.object_uri, OLD.provider, OLD.queue, OLD.event_time, OLD.time_range_start,
    OLD.time_range_end, OLD.created_at, OLD.object_version, OLD.object_size, OLD.sequencer, OLD.partition_key,
    OLD.priority, OLD.schema_version, OLD.sqs_message_id, OLD.sns_message_id, OLD.topic_arn, OLD.subject,
    OLD.extension
)
BEGIN
    SELECT json_extract(
        '{}', 'identity_is_immutable: ' || OLD.wal_id || ': ' || OLD.status || ' > ' || coalesce(NEW.status, 'null')
    );
    SELECT RAISE(ABORT, 'identity_is_immutable');
END
