"""`kfm quarantine`: units that a person has to judge, and their evidence.

Does not belong here: collecting evidence (`ingest/evidence.py`), the decision (`decision.py`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import click

from kfm_dagster.cli.completion import DATASET, UNIT
from kfm_dagster.cli.decision_options import (
    decision_of,
    decision_options,
    records_of,
    unknown_record,
)
from kfm_dagster.cli.ids import whole_wal_id
from kfm_dagster.cli.quarantine.output import say_outcome, show_case
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.errors import ArtifactError, KfmError
from kfm_dagster.ingest.evidence import read_evidence
from kfm_dagster.ledger.cases import CaseState, QuarantineCase, QuarantineCases
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster.storage.s3 import Store
from kfm_dagster.views.view import Parts

CASE_COLUMNS = ("wal_id", "dataset", "reason", "error_code", "attempts", "opened_at", "object_uri")
wal_ids_argument = click.argument("wal_ids", type=UNIT, metavar="WAL_ID...", nargs=-1, required=True)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
_REASON_CODE = re.compile(r"[a-z][a-z0-9_]{0,59}")


def cases_of(parts: Parts) -> QuarantineCases:
    """Return the cases of a deployment."""
    return QuarantineCases(parts.database, clock=parts.clock)


@click.group()
def quarantine() -> None:
    """Look at units that were taken out of automatic flows, or take some out.

    Example: kfm quarantine list
    """


@quarantine.command()
@wal_ids_argument
@click.option("--reason-code", required=True, help="Short code for lists and counts, e.g. suspect_content.")
@decision_options
@json_option
def add(*, wal_ids: tuple[str, ...], reason_code: str, as_json: bool, **decided: Any) -> None:
    """Take pending or failed units out of automatic flows. Their evidence follows with the next tick.

    Example: kfm quarantine add 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a --reason-code bad_site --reason "moved radar"
    """
    if not _REASON_CODE.fullmatch(reason_code):
        raise click.BadParameter(f"{reason_code!r} is no code: small letters, digits and _", param_hint="--reason-code")
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline() as pipeline, pipeline.database.transaction() as tx:
        records = records_of(pipeline.ledger, wal_ids, tx)
        pipeline.ledger.quarantine(
            [record.wal_id for record in records], reason_code=reason_code, decision=decision, tx=tx
        )
    say_outcome(records, Status.QUARANTINED, as_json=as_json)


@quarantine.command("list")
@click.option(
    "--state",
    type=click.Choice([state.value for state in CaseState]),
    default=CaseState.OPEN.value,
    show_default=True,
    help="Cases that stand so.",
)
@click.option("--dataset", type=DATASET, help="Only this dataset.")
@click.option("--reason", help="Only units that were quarantined for this, e.g. attempts_exhausted.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@json_option
def list_cases(*, state: str, dataset: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """List cases, the newest first.

    Example: kfm quarantine list --dataset goes-abi --reason attempts_exhausted
    """
    with opened_pipeline(read_only=True) as pipeline:
        if dataset is not None:
            _ = pipeline.registry[dataset]
        found = cases_of(pipeline).find(CaseState(state), dataset=dataset, reason=reason, limit=limit)
    show_rows([case.as_json() for case in found], CASE_COLUMNS, as_json=as_json)


@quarantine.command()
@click.argument("wal_id", type=UNIT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(*, wal_id: str, as_json: bool) -> None:
    """Show the evidence of a unit, of every time that it was quarantined.

    Example: kfm quarantine show 0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a
    """
    with opened_pipeline(read_only=True) as pipeline:
        wal_id = whole_wal_id(pipeline.database, wal_id)
        if pipeline.ledger.get(wal_id) is None:
            raise unknown_record(wal_id)
        cases = [(case.as_json(), _evidence(pipeline.store, case)) for case in cases_of(pipeline).of(wal_id)]
    if not cases:
        raise KfmError("no such unit was ever quarantined", observed=wal_id, next_step=f"kfm wal show {wal_id}")
    if as_json:
        click.echo(json.dumps({"wal_id": wal_id, "cases": [row | {"evidence": bundle} for row, bundle in cases]}))
        return
    for row, bundle in cases:
        show_case(row, bundle)


def _evidence(store: Store, case: QuarantineCase) -> dict[str, Any] | None:
    if case.evidence is None:
        return None
    try:
        return read_evidence(store, case.evidence)
    except ArtifactError as error:
        # The rest of the case is worth seeing all the same.
        return {"lost": str(error.observed)}
