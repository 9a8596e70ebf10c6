-- Roles besides the owner, created at the server's first start: the deployment fills pgstac's tables, the API queries them.
\getenv deployment_password DEPLOYMENT_PASSWORD
\getenv stac_api_password STAC_API_PASSWORD
CREATE ROLE kfm_deployment LOGIN PASSWORD :'deployment_password';
CREATE ROLE kfm_stac_api LOGIN PASSWORD :'stac_api_password';
-- pgstac creates these if they are missing.
CREATE ROLE pgstac_ingest;
CREATE ROLE pgstac_read;
GRANT pgstac_ingest TO kfm_deployment;
GRANT pgstac_read TO kfm_stac_api;
