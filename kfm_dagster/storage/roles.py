"""Database roles that cannot alter evidence (deployments) or records (retention).

SQLite has no roles; there, triggers alone protect the records. On PostgreSQL, `sql/queries/roles.sql` has the rights of
each role. Does not belong here: how a role authenticates, which the server determines.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import DBAPIError

from kfm_dagster.errors import ConfigurationError, ExitCode, KfmError
from kfm_dagster.storage.database import Database

MAX_ROLE_NAME_BYTES: Final = 63
"""Longest name (NAMEDATALEN - 1); PostgreSQL silently truncates a longer name, and would grant to another role."""


class DeploymentRoleError(KfmError):
    """The role cannot be granted its rights."""

    exit_code = ExitCode.REFUSED


def grant_deployment_role(database: Database, role: str) -> bool:
    """Grant a role exactly a deployment's rights; return whether the role was created.

    `database` is connected as the owner of the tables, and migrated. Call this after every migration, because the
    role has no rights to a new table; earlier rights are revoked in the same transaction. A created role can log in and
    has no password yet. Raises ConfigurationError for a wrong name or on SQLite, and DeploymentRoleError if the owner
    may not grant, or if the role could still alter evidence; then nothing is changed.
    """
    return _granted(database, role, rights="roles.decisions")


def grant_retention_role(database: Database, role: str) -> bool:
    """Grant retention's rights, like `grant_deployment_role`: read every table, log decisions."""
    return _granted(database, role, rights="roles.retention")


def check_role_name(dialect: str, role: str) -> None:
    """Raise ConfigurationError for a wrong name, or on a database that has no roles."""
    if dialect != "postgresql":
        raise ConfigurationError(
            "only PostgreSQL has roles",
            observed=dialect,
            expected="KFM_WAL_DSN of a PostgreSQL database, as its owner",
        )
    if not 0 < len(role.encode()) <= MAX_ROLE_NAME_BYTES or "\0" in role:
        raise ConfigurationError(
            "the name of the role is not valid", observed=repr(role), expected=f"1 to {MAX_ROLE_NAME_BYTES} bytes"
        )


def _granted(database: Database, role: str, *, rights: str) -> bool:
    check_role_name(database.dialect, role)
    try:
        with database.transaction() as tx:
            created = tx.run("roles.create", role=role).scalars().all()
            # The database has quoted the names in these texts.
            for statement in created:
                tx.connection.exec_driver_sql(statement.replace("%", "%%"))
            for name in ("roles.frame", rights):
                for row in tx.run(name, role=role).all():
                    tx.connection.exec_driver_sql(row.statement.replace("%", "%%"))
            excess = tx.run("roles.excess", role=role).first()
            if excess is not None:
                raise DeploymentRoleError(
                    "the role could alter evidence",
                    observed=f"{role} has {excess.right_to} on {excess.relation}",
                    expected="a role that is not a superuser, does not own the tables and has no rights from other "
                    "roles",
                    next_step="use another role, or revoke these rights",
                )
            return bool(created)
    except DBAPIError as error:
        raise DeploymentRoleError(
            observed=str(error.orig).strip(),
            expected="the owner's connection; to create a role it needs CREATEROLE",
            next_step="connect as the owner of the tables, or have an administrator create the role (CREATE ROLE)",
        ) from None
