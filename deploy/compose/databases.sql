-- Roles and databases of a deployment, made with the server's first start by its owner, over whose database kfm this runs.
-- kfm init, as the owner, then gives the first two roles their rights in the ledger and puts pgstac into its database.
\getenv deployment_password DEPLOYMENT_PASSWORD
\getenv retention_password RETENTION_PASSWORD
\getenv stac_api_password STAC_API_PASSWORD
CREATE ROLE kfm_deployment LOGIN PASSWORD :'deployment_password';
CREATE ROLE kfm_retention LOGIN PASSWORD :'retention_password';
CREATE ROLE kfm_stac_api LOGIN PASSWORD :'stac_api_password';
-- pgstac makes these unless they are there: one may fill its tables, the other one ask.
CREATE ROLE pgstac_ingest;
CREATE ROLE pgstac_read;
GRANT pgstac_ingest TO kfm_deployment;
GRANT pgstac_read TO kfm_stac_api;
-- What Dagster keeps of its own is no evidence.
CREATE DATABASE dagster OWNER kfm_deployment;
CREATE DATABASE stac;
-- Nobody connects where nothing is to be done: the API of the public sees no ledger.
REVOKE CONNECT ON DATABASE kfm, dagster, stac FROM PUBLIC;
GRANT CONNECT ON DATABASE kfm TO kfm_deployment, kfm_retention;
GRANT CONNECT ON DATABASE stac TO kfm_deployment, kfm_stac_api;
