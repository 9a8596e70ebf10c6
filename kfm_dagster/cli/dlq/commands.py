"""`kfm dlq`: look at the dead-letter queue, and drain, redrive or discard what is on it.

Whatever changes something shows its plan first and asks, or wants --confirm. Does not belong here: what a dead letter
is and how it is worked on (`recovery/dead_letters/`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from kfm_dagster.cli.completion import DATASET, ERROR_CODE
from kfm_dagster.cli.confirm import confirm_option, require_confirmation
from kfm_dagster.cli.decision_options import decision_of, decision_options, dry_run_option
from kfm_dagster.cli.dlq.output import bar, show_plan, show_report
from kfm_dagster.cli.numbers import COUNT, POSITIVE
from kfm_dagster.cli.option_groups import option_group
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_fields, show_rows
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.preflight import hold_roots
from kfm_dagster.plural import counted
from kfm_dagster.recovery.dead_letters import drain as dead_letter_drain
from kfm_dagster.recovery.dead_letters import moves as dead_letter_moves
from kfm_dagster.recovery.dead_letters import plan as dead_letter_plan
from kfm_dagster.recovery.dead_letters.batches import (
    MAX_BATCH_SIZE,
    Bounds,
    DeadLetterWork,
)
from kfm_dagster.recovery.dead_letters.letters import DeadLetterClass, LetterSelection
from kfm_dagster.recovery.dead_letters.plan import LOOK_LIMIT
from kfm_dagster.settings import Settings

LETTER_COLUMNS = ("message_id", "class", "dataset", "error_code", "receive_count", "sent_at", "detail", "objects")

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
limit_option = click.option(
    "--limit", default=LOOK_LIMIT, show_default=True, type=click.IntRange(1, LOOK_LIMIT), help="Look at so many."
)


def _asked(classes: Sequence[str], datasets: Sequence[str], error_codes: Sequence[str]) -> LetterSelection:
    """Return the selection that the options of a command describe."""
    kinds = frozenset(map(DeadLetterClass, classes))
    return LetterSelection(classes=kinds, datasets=frozenset(datasets), error_codes=frozenset(error_codes))


_CLASSES = click.Choice([kind.value for kind in DeadLetterClass])
_SELECTING = (
    click.option("--class", "classes", multiple=True, type=_CLASSES, help="Only this class; may be repeated."),
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
        help="Messages received, and committed, together.",
    ),
    click.option("--max-batches", default=20, show_default=True, type=POSITIVE, help="So many at most."),
    click.option("--limit", type=POSITIVE, help="Act on so many messages at most. Default: no limit."),
)
_DECIDING = (decision_options,)
_SAYING = (
    dry_run_option,
    confirm_option,
    json_option,
)


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that select; it gets them as `asked`."""
    return option_group(command, _SELECTING, "asked", _asked)


def bounding(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of its bounds; it gets them as `bounds`."""
    return option_group(command, _BOUNDING, "bounds", Bounds)


def deciding(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a decision (`decided`) and of its confirmation and output (`said`)."""
    for options, name in ((_SAYING, "said"), (_DECIDING, "decided")):
        command = option_group(command, options, name, dict)
    return command


@click.group()
def dlq() -> None:
    """Look at the dead-letter queue, and drain, redrive or discard what is on it.

    Example: kfm dlq status
    """


@dlq.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show how many messages there are, since when, and until when SQS keeps them.

    Example: kfm dlq status --json
    """
    with opened_pipeline(read_only=True) as pipeline:
        found = dead_letter_plan.status(pipeline)
    if as_json:
        click.echo(json.dumps(found))
    else:
        show_fields(found | {f"ledger: {state}": count for state, count in found.pop("ledger").items()})


@dlq.command("list")
@selecting
@limit_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_letters(*, asked: LetterSelection, limit: int, as_json: bool) -> None:
    """List messages, the oldest first, by what became of their units.

    Example: kfm dlq list --class unreadable
    """
    with opened_pipeline(read_only=True) as pipeline:
        letters = [letter for letter in dead_letter_plan.look(pipeline, limit=limit) if asked.takes(letter)]
    show_rows([letter.as_json() for letter in letters], LETTER_COLUMNS, as_json=as_json)


@dlq.command()
@selecting
@limit_option
@json_option
def plan(*, asked: LetterSelection, limit: int, as_json: bool) -> None:
    """Count messages by class, dataset and error code. Changes nothing.

    Example: kfm dlq plan --dataset goes-abi
    """
    with opened_pipeline(read_only=True) as pipeline:
        plan = dead_letter_plan.plan(pipeline, selection=asked, limit=limit)
    if as_json:
        click.echo(json.dumps(plan.as_json()))
    else:
        show_plan(plan)


@dlq.command()
@selecting
@bounding
@click.option(
    "--stop-after",
    default=dead_letter_drain.STOP_AFTER,
    show_default=True,
    type=COUNT,
    help="Stop when so many drained units have come back with the error that they had; 0: never.",
)
@click.option(
    "--pause", default=0.0, show_default=True, type=click.FloatRange(0, 86_400), help="Seconds between two batches."
)
@deciding
def drain(
    *, asked: LetterSelection, bounds: Bounds, stop_after: int, pause: float, decided: Any, said: Any
) -> ExitCode:
    """Work on messages where they lie: records for unknown units, another attempt for failed ones.

    A message leaves the queue when its units are all terminal; an unreadable one stays for a person. Exit code 4: the
    drain stopped by itself, because the same error came back or the ledger does not balance.

    Example: kfm dlq drain --error-code storage_unavailable --reason "S3 is back" --change-ref INC-7
    """
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline(read_only=said["dry"]) as pipeline:
        how: dict[str, Any] = {"bounds": bounds, "stop_after": stop_after or None, "pause_seconds": pause}
        work = partial(dead_letter_drain.drain, pipeline, decision=decision, selection=asked, **how)
        return _carry_out("drain", pipeline, asked, work, limit=bounds.limit, **said)


@dlq.command()
@selecting
@bounding
@deciding
def redrive(*, asked: LetterSelection, bounds: Bounds, decided: Any, said: Any) -> ExitCode:
    """Move messages back to the primary queue: unknown ones, and failed ones that may be tried again.

    Sent first and deleted then, so that none is ever on neither queue. Exit code 4: a queue refused a message.

    Example: kfm dlq redrive --class unknown --reason "the consumer is back" --change-ref CHG-9
    """
    decision = decision_of(Settings.load(), **decided)
    with opened_pipeline(read_only=said["dry"]) as pipeline:
        work = partial(dead_letter_moves.redrive, pipeline, decision=decision, selection=asked, bounds=bounds)
        return _carry_out("redrive", pipeline, asked, work, limit=bounds.limit, **said)


@dlq.command()
@click.argument("message_ids", metavar="MESSAGE_ID...", nargs=-1, required=True)
@deciding
def discard(*, message_ids: Sequence[str], decided: Any, said: Any) -> ExitCode:
    """Take unreadable messages off the queue for good; their bytes and their reason are kept.

    Exit code 4: a named message was not found, or can be read.

    Example: kfm dlq discard 5f0c1d0e-1b5a-4c11-9a40-7f3e1d2c4b5a --reason "a test of the sender"
    """
    decision = decision_of(Settings.load(), **decided)
    named = frozenset(message_ids)
    with opened_pipeline(read_only=said["dry"]) as pipeline:
        work = partial(dead_letter_moves.discard, pipeline, decision=decision, message_ids=named)
        return _carry_out("discard", pipeline, LetterSelection(message_ids=named), work, **said)


def _carry_out(
    name: str,
    pipeline: Pipeline,
    selection: LetterSelection,
    work: Callable[..., DeadLetterWork],
    *,
    limit: int | None = None,
    dry: bool,
    confirm: bool,
    as_json: bool,
) -> ExitCode:
    """Show the plan, ask, do it with a progress bar, and show what became of each message."""
    planned = dead_letter_plan.plan(pipeline, selection=selection)
    if not as_json:
        show_plan(planned, limit=limit)
    done = None
    if not dry:
        wanted = min(planned.selected, limit or planned.selected)
        require_confirmation(f"{name} {counted(wanted, 'message')} of {planned.queue}?", confirmed=confirm)
        hold_roots(pipeline.settings, pipeline.database)
        with bar(name, total=wanted) as advance:
            done = work(report=advance)
    if as_json:
        click.echo(json.dumps({"plan": planned.as_json(), "report": done and done.as_json()}))
    elif done is not None:
        show_report(done)
    return done.exit_code if done is not None else ExitCode.DONE
