-- PostgreSQL's own backups: archives and standbys; SQLite has none.

-- name: archiving
-- Whether the write-ahead log is archived, whether archiving fails at present, and the number of standbys.
SELECT
    current_setting('archive_mode') AS mode,
    a.last_failed_wal AS failed,
    coalesce(a.last_failed_time > coalesce(a.last_archived_time, '-infinity'), FALSE) AS failing,
    (SELECT count(*) FROM pg_stat_replication) AS standbys
FROM pg_stat_archiver AS a;
