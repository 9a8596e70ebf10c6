-- Which deployment a database is of.

-- name: id
SELECT deployment_id FROM deployment;
