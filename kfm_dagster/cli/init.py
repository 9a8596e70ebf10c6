"""`kfm init`: check queue and stores, then upgrade the databases of ledger and Dagster."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from sqlalchemy.engine import make_url

from kfm_dagster.addresses import shown
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.cli.session import opened_database
from kfm_dagster.deployment.local import dagster_yaml_for
from kfm_dagster.errors import ConfigurationError, ForeignRootError, NoLedgerError, SchemaVersionError
from kfm_dagster.governance.review import OverrideReview
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.preflight import preflight, stores
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.private import private_folder
from kfm_dagster.storage.roles import check_role_name, grant_deployment_role, grant_retention_role
from kfm_dagster.storage.roots import deployment_id, hold, refuse_foreign, roots


@click.command()
@click.option("--role", help="Database role of the deployment; it gets no right to change evidence.")
@click.option("--retention-role", help="Database role of retention; it gets rights to read (docs/retention.md).")
@click.option("--adopt", is_flag=True, help="Take over stores that have files and no deployment's id (docs/deploy.md).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def init(*, role: str | None, retention_role: str | None, adopt: bool, as_json: bool) -> None:
    """Create or migrate the databases of ledger and Dagster, and mark the stores.

    Run it before the first start and after every upgrade, then start the daemon and the web server. It can be repeated,
    also concurrently. It creates local folders, but no queues or buckets. On PostgreSQL, it connects as the role that
    the DSN names, and this role owns the tables. --role creates another role if missing, without a password, and grants
    what a deployment needs; a deployment that connects as this role migrates nothing. --retention-role does the same
    for the role of KFM_RETENTION_DSN. If KFM_STAC_API_DSN is set, pgstac is installed or upgraded in that database.

    Example: kfm init --role kfm_deployment
    """
    settings = Settings.load()
    for name in (role, retention_role):
        if name is not None:
            check_role_name(make_url(settings.database_url).get_backend_name(), name)
    if role is not None and role == retention_role:
        raise ConfigurationError(
            "retention needs a role of its own", observed=role, expected="another name than that of --role"
        )
    read_configuration(settings)
    refuse_unwritable_home(settings.home)
    # First, so that a refusal leaves the databases unchanged.
    preflight(settings, connect(settings).depth)
    _refuse_foreign_roots(settings, adopt=adopt)
    places = {name: place for name, _, place in stores(settings)}
    served = {root.name for root in roots(settings) if root.served}
    for name, place in places.items():
        if "://" not in place:
            private_folder(settings.home if name in served else Path(place))
            Path(place).mkdir(parents=True, exist_ok=True)
    report: dict[str, dict[str, Any]] = {
        "ledger": _ledger(settings, role, retention_role, adopt=adopt),
        "dagster": _dagster(settings),
        "stores": places,
        "queue": {"name": settings.sqs_primary_queue},
    }
    if settings.stac_api_dsn:
        from kfm_dagster.followers.stac_api.database import StacApiDatabase  # noqa: PLC0415, an extra

        report["stac api"] = dict(StacApiDatabase(settings.stac_api_dsn).install())
    if as_json:
        click.echo(json.dumps(report))
        return
    for name, facts in report.items():
        click.echo(f"{name:8} " + ", ".join(f"{fact} {value}" for fact, value in facts.items()))
    if not os.environ.get("DAGSTER_HOME"):
        click.echo(f"next: export DAGSTER_HOME={report['dagster']['home']}")


def _refuse_foreign_roots(settings: Settings, *, adopt: bool) -> None:
    """Raise ForeignRootError before a database is created for another deployment's roots."""
    with suppress(SchemaVersionError):  # opening the database later upgrades or refuses another release's schema
        known = _known_id(settings)
        try:
            refuse_foreign(roots(settings), known, adopt=adopt)
        except ForeignRootError:
            # Another init may have created the database meanwhile, and marked the roots.
            if known == _known_id(settings):
                raise


def _known_id(settings: Settings) -> str:
    """Return the deployment's id; without a database an empty text, which no root has as its id."""
    try:
        with opened_database(settings) as database:
            return deployment_id(database)
    except NoLedgerError:
        return ""


def _ledger(settings: Settings, role: str | None, retention_role: str | None, *, adopt: bool) -> dict[str, Any]:
    database = Database.open(settings.database_url)
    try:
        OverrideReview(database, clock=lambda: datetime.now(UTC)).work_in(settings)
        deployment = deployment_id(database)
        hold(roots(settings), deployment, adopt=adopt)
        facts = {"database": shown(settings.database_url), "schema": database.schema(), "deployment": deployment}
        if role is not None:
            facts["role"] = f"{role} ({'made' if grant_deployment_role(database, role) else 'was there'})"
        if retention_role is not None:
            created = grant_retention_role(database, retention_role)
            facts["retention role"] = f"{retention_role} ({'made' if created else 'was there'})"
        return facts
    finally:
        database.dispose()


def _dagster(settings: Settings) -> dict[str, Any]:
    # Imported here, after all checks, because importing Dagster takes seconds.
    from kfm_dagster.defs.instance_storage import prepare  # noqa: PLC0415

    home = settings.dagster_home
    written = prepare(home, dagster_yaml=dagster_yaml_for(os.environ, home))
    storage = shown(settings.dagster_dsn) if settings.dagster_dsn else "SQLite files"
    return {"home": str(home), "dagster.yaml": "written" if written else "kept", "storage": storage}
