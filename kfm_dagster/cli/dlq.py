"""`kfm dlq`: list, drain, redrive or discard the messages of the dead-letter queue.

A command that changes something shows its plan first, and asks unless --confirm is given. Does not belong here: classes
and treatment of dead letters (`recovery/dead_letters/`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import click
from rich.console import Console

from kfm_dagster.cli.completion import COUNT, DATASET, ERROR_CODE, POSITIVE
from kfm_dagster.cli.decision_options import (
    confirm_option,
    decision_of,
    decision_options,
    dry_run_option,
    require_confirmation,
)
from kfm_dagster.cli.filter_options import option_group, require_dataset
from kfm_dagster.cli.progress_bar import bar_of
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import list_command, object_as_json, show_fields, show_rows
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.preflight import hold_roots
from kfm_dagster.plural import counted
from kfm_dagster.recovery.dead_letters import letters, treatments
from kfm_dagster.recovery.dead_letters.letters import LOOK_LIMIT, DeadLetterClass, LetterSelection
from kfm_dagster.recovery.dead_letters.work import (
    MAX_BATCH_SIZE,
    OUTSIDE_SELECTION,
    Bounds,
    DeadLetterWork,
    End,
    LetterOutcome,
)
from kfm_dagster.settings import Settings

GROUP_COLUMNS = ("class", "dataset", "error_code", "messages", "units", "no_replay", "recurred")
MESSAGE_COLUMNS = ("message_id", "class", "dataset", "error_code", "outcome", "detail")
USUAL = {LetterOutcome.DELETED, LetterOutcome.WAITS, LetterOutcome.MOVED, LetterOutcome.DISCARDED}
"""Outcomes that are counted but not listed; `--json` lists every message."""

limit_option = click.option(
    "--limit",
    default=LOOK_LIMIT,
    show_default=True,
    type=click.IntRange(1, LOOK_LIMIT),
    help="Maximum number of messages to look at.",
)
_SELECTING = (
    click.option(
        "--class",
        "classes",
        multiple=True,
        type=click.Choice([kind.value for kind in DeadLetterClass]),
        help="Only this class; may be repeated.",
    ),
    click.option("--dataset", "datasets", type=DATASET, multiple=True, help="Only this dataset; may be repeated."),
    click.option(
        "--error-code", "error_codes", type=ERROR_CODE, multiple=True, help="Only this error code; may be repeated."
    ),
)
_BOUNDING = (
    click.option(
        "--batch-size",
        default=100,
        show_default=True,
        type=click.IntRange(1, MAX_BATCH_SIZE),
        help="Messages that are received and committed together.",
    ),
    click.option("--max-batches", default=20, show_default=True, type=POSITIVE, help="Maximum number of batches."),
    click.option("--limit", type=POSITIVE, help="Maximum number of messages. Default: no limit."),
)


def _selection(**names: Any) -> LetterSelection:
    for dataset in names.get("datasets", ()):
        require_dataset(dataset)
    return LetterSelection(**{name: frozenset(values) for name, values in names.items()})


selecting = partial(option_group, options=_SELECTING, name="selection", value_of=_selection)
bounding = partial(option_group, options=_BOUNDING, name="bounds", value_of=Bounds)
deciding = partial(
    option_group,
    options=(decision_options, dry_run_option, confirm_option, object_as_json),
    name="decided",
    value_of=dict,
)


@click.group()
def dlq() -> None:
    """List, drain, redrive or discard dead letters.

    Example: kfm dlq status
    """


@dlq.command()
@object_as_json
def status(*, as_json: bool) -> None:
    """Show the number of messages, when the oldest was sent, and until when SQS keeps it.

    Example: kfm dlq status --json
    """
    with opened_pipeline(read_only=True) as pipeline:
        letter_status = letters.status(pipeline)
    if as_json:
        click.echo(json.dumps(letter_status))
    else:
        show_fields(letter_status | {f"ledger: {state}": count for state, count in letter_status.pop("ledger").items()})


@dlq.command("list")
@selecting
@limit_option
@list_command("message_id", "class", "dataset", "error_code", "receive_count", "sent_at", "detail", "objects")
def list_letters(*, selection: LetterSelection, limit: int) -> list[dict[str, Any]]:
    """List messages, the oldest first, each with its class, which depends on its units.

    Example: kfm dlq list --class unreadable
    """
    with opened_pipeline(read_only=True) as pipeline:
        return [letter.as_json() for letter in letters.look(pipeline, limit=limit) if selection.takes(letter)]


@dlq.command()
@selecting
@limit_option
@object_as_json
def plan(*, selection: LetterSelection, limit: int, as_json: bool) -> None:
    """Count messages by class, dataset and error code. Changes nothing.

    Example: kfm dlq plan --dataset goes-abi
    """
    with opened_pipeline(read_only=True) as pipeline:
        planned = letters.plan(pipeline, selection=selection, limit=limit)
    if as_json:
        click.echo(json.dumps(planned))
    else:
        _show_plan(planned)


@dlq.command()
@selecting
@bounding
@click.option(
    "--stop-after",
    default=treatments.STOP_AFTER,
    show_default=True,
    type=COUNT,
    help="Stop after this number of drained units have failed with their old error again; 0: never stop.",
)
@click.option(
    "--pause", default=0.0, show_default=True, type=click.FloatRange(0, 86_400), help="Seconds between two batches."
)
@deciding
def drain(*, selection: LetterSelection, bounds: Bounds, stop_after: int, pause: float, decided: Any) -> ExitCode:
    """Process the messages in place: record unknown units, and retry failed units.

    A message leaves the queue when its units are all terminal; an unreadable message stays for a person. Exit code 4:
    the drain stopped, because units failed with their old error again (--stop-after), a result differs from an earlier
    success, or the ledger's counts of units do not add up.

    Example: kfm dlq drain --error-code storage_unavailable --reason "S3 is back" --change-ref INC-7
    """
    treat = partial(treatments.drain, bounds=bounds, stop_after=stop_after or None, pause_seconds=pause)
    return _carry_out("drain", treat, selection, limit=bounds.limit, **decided)


@dlq.command()
@selecting
@bounding
@deciding
def redrive(*, selection: LetterSelection, bounds: Bounds, decided: Any) -> ExitCode:
    """Move messages of unknown units, and of retriable failed units, to the primary queue.

    Each message is sent to the primary queue before it is deleted, so that it is always on a queue. Exit code 4: a
    queue refused a message.

    Example: kfm dlq redrive --class unknown --reason "the consumer is back" --change-ref CHG-9
    """
    return _carry_out("redrive", partial(treatments.redrive, bounds=bounds), selection, limit=bounds.limit, **decided)


@dlq.command()
@click.argument("message_ids", metavar="MESSAGE_ID...", nargs=-1, required=True)
@deciding
def discard(*, message_ids: tuple[str, ...], decided: Any) -> ExitCode:
    """Permanently remove unreadable messages from the queue; their bytes and reason are kept.

    Exit code 4: a named message was not found, or can be read.

    Example: kfm dlq discard 5f0c1d0e-1b5a-4c11-9a40-7f3e1d2c4b5a --reason "a test of the sender"
    """
    return _carry_out("discard", treatments.discard, _selection(message_ids=message_ids), **decided)


def _carry_out(
    name: str,
    treat: Callable[..., DeadLetterWork],
    selection: LetterSelection,
    *,
    limit: int | None = None,
    dry: bool,
    confirm: bool,
    as_json: bool,
    **decided: Any,
) -> ExitCode:
    """Show the plan, ask, carry the plan out with a progress bar, and show the outcomes."""
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline(read_only=dry) as pipeline:
        planned = letters.plan(pipeline, selection=selection)
        if not as_json:
            _show_plan(planned, limit=limit)
        result = None
        if not dry:
            total = min(planned["selected"], limit or planned["selected"])
            require_confirmation(f"{name} {counted(total, 'message')} of {planned['queue']}?", confirmed=confirm)
            hold_roots(pipeline.settings, pipeline.database)
            with bar_of(Console(stderr=True)) as bar:
                task = bar.add_task(name, total=total)

                def report(work: DeadLetterWork) -> None:
                    treated = work.outcomes.total() - work.outcomes[LetterOutcome.LEFT]
                    bar.update(task, completed=treated)

                result = treat(pipeline, decision=decision, selection=selection, report=report)
    if as_json:
        click.echo(json.dumps({"plan": planned, "report": result and result.as_json()}))
    elif result is not None:
        _show_report(result)
    return result.exit_code if result is not None else ExitCode.DONE


def _show_plan(planned: dict[str, Any], *, limit: int | None = None) -> None:
    looked_at, selected = planned["looked_at"], planned["selected"]
    now = f", {limit} of them now" if limit is not None and limit < selected else ""
    click.echo(f"{planned['queue']}: {counted(looked_at, 'message')} looked at, {selected} selected{now}")
    show_rows(planned["groups"], GROUP_COLUMNS)


def _show_report(done: DeadLetterWork) -> None:
    """Print the outcomes of the messages; warnings go to stderr."""
    unusual = [row for row in done.messages if row["outcome"] not in USUAL and row["detail"] not in OUTSIDE_SELECTION]
    if unusual:
        show_rows(unusual, MESSAGE_COLUMNS)
    rows = [{"outcome": outcome.value, "messages": messages} for outcome, messages in done.outcomes.most_common()]
    show_rows(rows, ("outcome", "messages"))
    units = done.units
    click.echo(
        f"{done.run_id}: batches {done.batches}, units created {units['created']}, requeued {units['requeued']}, "
        f"quarantined {units['quarantined']}"
    )
    if waiting := done.outcomes[LetterOutcome.WAITS]:
        click.echo(f"{counted(waiting, 'message')} kept until the daemon (or kfm drain) has ingested their units")
    for message_id in sorted(done.unmet):
        click.echo(f"not done: {message_id}", err=True)
    if done.end not in {None, End.EMPTY, End.LIMIT}:
        click.echo(f"ended at {done.end}" + (f": {done.detail}" if done.detail else ""), err=True)
