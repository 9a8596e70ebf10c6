-- Roles and databases of a deployment. The owner runs this in the database kfm; compose does so at the server's first start.
-- Then `kfm init`, as the owner, grants the first two roles their rights in the ledger and installs pgstac in database stac.
\getenv deployment_password DEPLOYMENT_PASSWORD
\getenv retention_password RETENTION_PASSWORD
\getenv stac_api_password STAC_API_PASSWORD
CREATE ROLE kfm_deployment LOGIN PASSWORD :'deployment_password';
CREATE ROLE kfm_retention LOGIN PASSWORD :'retention_password';
CREATE ROLE kfm_stac_api LOGIN PASSWORD :'stac_api_password';
-- pgstac creates these if they are missing: pgstac_ingest fills its tables, pgstac_read queries them.
CREATE ROLE pgstac_ingest;
CREATE ROLE pgstac_read;
GRANT pgstac_ingest TO kfm_deployment;
GRANT pgstac_read TO kfm_stac_api;
-- Dagster's own records are not evidence, so the deployment owns their database.
CREATE DATABASE dagster OWNER kfm_deployment;
CREATE DATABASE stac;
-- Each role connects only to the databases that it needs; the public API cannot read the ledger.
REVOKE CONNECT ON DATABASE kfm, dagster, stac FROM PUBLIC;
GRANT CONNECT ON DATABASE kfm TO kfm_deployment, kfm_retention;
GRANT CONNECT ON DATABASE stac TO kfm_deployment, kfm_stac_api;
