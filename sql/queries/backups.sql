-- How PostgreSQL itself keeps what is written elsewhere; SQLite keeps nothing.

-- name: archiving
-- Whether its log of writes is archived, whether that fails now, and how many standbys follow.
SELECT
    current_setting('archive_mode') AS mode,
    a.last_failed_wal AS failed,
    coalesce(a.last_failed_time > coalesce(a.last_archived_time, '-infinity'), FALSE) AS failing,
    (SELECT count(*) FROM pg_stat_replication) AS standbys
FROM pg_stat_archiver AS a;
