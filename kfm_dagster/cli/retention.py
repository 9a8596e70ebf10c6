"""`kfm retention`: plan and remove data that nothing needs and that is too old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from kfm_dagster.cli.decision_options import actor_of, actor_option
from kfm_dagster.cli.session import opened_database
from kfm_dagster.cli.tables import rows_as_json, show_rows
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.retention import REASON, RETENTION, Pruned, Retention, RetentionKind, RetentionPolicy, retention_of
from kfm_dagster.settings import Settings

COLUMNS = ("kind", "keep_days", "before", "older", "needed")
NOTHING = f"everything is kept: no kind has a policy in {RETENTION} (docs/retention.md)"


@click.group()
def retention() -> None:
    """Delete old data by the policy of retention.yaml.

    Kinds: runs of Dagster, landed messages, outputs of stages, evidence of closed cases.
    The ledger, its history and the governance log stay.

    Example: kfm retention plan
    """


@retention.command()
@rows_as_json
def plan(*, as_json: bool) -> None:
    """Show how much data of each kind is too old, and how much of it is needed or removable.

    Changes nothing.

    Example: kfm retention plan --json
    """
    with _opened(writing=False) as pruning:
        _show(pruning.plan(), "removable", policy=pruning.policy, as_json=as_json)


@retention.command()
@actor_option
@rows_as_json
def run(*, actor: str | None, as_json: bool) -> None:
    """Remove the removable data, kind by kind and in batches; a stopped run can be repeated.

    Example: kfm retention run
    """
    # Checked before the stores are opened, because opening creates their folders.
    who = Decision(actor=actor_of(Settings.load(), actor), reason=REASON).actor
    with _opened(writing=True) as pruning:
        _show(pruning.run(actor=who), "removed", policy=pruning.policy, as_json=as_json)


@contextmanager
def _opened(*, writing: bool) -> Iterator[Retention]:
    settings = Settings.load()
    policy = RetentionPolicy.load(settings.configs_dir)
    under_its_role = settings.model_copy(update={"wal_dsn": settings.retention_url})
    with opened_database(under_its_role, recording=writing) as database:
        if RetentionKind.DAGSTER_RUNS not in policy.ages:
            yield retention_of(settings, database, runs=None, clock=utc_now)
            return
        # Imported here, because importing Dagster takes seconds.
        from kfm_dagster.defs.run_storage import old_runs_of  # noqa: PLC0415

        home = settings.dagster_home
        with old_runs_of(home, database) as runs:
            yield retention_of(settings, database, runs=runs, clock=utc_now)


def _show(pruned: Iterable[Pruned], removed_column: str, *, policy: RetentionPolicy, as_json: bool) -> None:
    rows = [
        {
            "kind": of_kind.kind.value,
            "keep_days": of_kind.keep.total_seconds() / 86_400,
            "before": rfc3339(of_kind.before, timespec="seconds"),
            "older": of_kind.old,
            "needed": of_kind.needed,
            removed_column: of_kind.removed,
            "bytes": of_kind.bytes,
        }
        for of_kind in pruned
    ]
    if policy.ages or as_json:
        show_rows(rows, (*COLUMNS, removed_column, "bytes"), as_json=as_json)
    else:
        click.echo(NOTHING)
