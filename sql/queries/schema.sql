-- name: create_version_table
CREATE TABLE IF NOT EXISTS schema_version (
    number integer PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
);

-- name: applied
SELECT number, name, sha256 FROM schema_version ORDER BY number;

-- name: record
INSERT INTO schema_version (number, name, sha256) VALUES (:number, :name, :sha256);
