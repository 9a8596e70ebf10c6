"""The roles that work with the tables that the owner makes: a deployment's can alter no evidence, retention's nothing.

On PostgreSQL only; SQLite has no roles, its triggers alone keep what is on record. Which rights a role has stands in
one place, `sql/queries/roles.sql`. Does not belong here: how a role proves who it is (password, certificate); that is
the server's business.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import DBAPIError

from kfm_dagster.errors import ConfigurationError, ExitCode, KfmError
from kfm_dagster.storage.database import Database

MAX_ROLE_NAME_BYTES: Final = 63
"""PostgreSQL cuts a longer name off silently (NAMEDATALEN - 1), and would grant to another role."""


class DeploymentRoleError(KfmError):
    """The role cannot get its rights."""

    exit_code = ExitCode.REFUSED


def grant_deployment_role(database: Database, role: str) -> bool:
    """Give a role what a deployment needs and nothing else; return whether the role was made for it.

    `database` is connected as the owner of its tables, and migrated. To be done again after every migration, because
    a new table is nobody's but the owner's; what the role had before is taken from it in the same transaction. A role
    that is made can log in and has no password yet. Raises ConfigurationError for a wrong name or on SQLite, and
    DeploymentRoleError where the owner may not do it, or where the role could alter evidence all the same; then
    nothing is changed.
    """
    return _granted(database, role, rights="roles.decisions")


def grant_retention_role(database: Database, role: str) -> bool:
    """Give a role what retention needs: to read all, and to add to the governance log. Else as for a deployment's."""
    return _granted(database, role, rights="roles.retention")


def refuse_no_role(dialect: str, role: str) -> None:
    """Raise ConfigurationError for a wrong name, or on a database that has no roles."""
    if dialect != "postgresql":
        raise ConfigurationError(
            "roles are PostgreSQL's",
            observed=dialect,
            expected="KFM_WAL_DSN of a PostgreSQL database, as its owner",
        )
    if not 0 < len(role.encode()) <= MAX_ROLE_NAME_BYTES or "\0" in role:
        raise ConfigurationError(
            "this is no name of a role", observed=repr(role), expected=f"1 to {MAX_ROLE_NAME_BYTES} bytes"
        )


def _granted(database: Database, role: str, *, rights: str) -> bool:
    refuse_no_role(database.dialect, role)
    try:
        return _grant(database, role, rights)
    except DBAPIError as error:
        raise DeploymentRoleError(
            observed=str(error.orig).strip(),
            expected="the owner's connection; to make a role it needs CREATEROLE",
            next_step="connect as the owner of the tables, or let an administrator make the role first (CREATE ROLE)",
        ) from None


def _grant(database: Database, role: str, rights: str) -> bool:
    with database.transaction() as tx:
        made = tx.run("roles.create", role=role).scalars().all()
        # The names in these texts are quoted by the database itself.
        for statement in made:
            tx.connection.exec_driver_sql(statement.replace("%", "%%"))
        for name in ("roles.frame", rights):
            for row in tx.run(name, role=role).all():
                tx.connection.exec_driver_sql(row.statement.replace("%", "%%"))
        more = tx.run("roles.excess", role=role).first()
        if more is not None:
            raise DeploymentRoleError(
                "the role could alter evidence",
                observed=f"{role} has {more.right_to} on {more.relation}",
                expected="a role that is no superuser, does not own the tables and has no rights from other roles",
                next_step="take another role, or take these rights from it",
            )
    return bool(made)
