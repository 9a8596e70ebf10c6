"""Options and output of the replay commands: settings, selection; tables, JSON and YAML.

Belongs here: the conversion of options to settings and selections, and of plans and reports to text. Does not belong
here: the planning and running of replays (`recovery/replay`).
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from kfm_dagster.cli.completion import COUNT, DATASET, DAY, ERROR_CODE, POSITIVE, UNIT
from kfm_dagster.cli.decision_options import REPLAY_REASON, actor_option, change_ref_option, confirm_option
from kfm_dagster.cli.filter_options import option_group
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import show_fields, show_section
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.documents import read_yaml
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.plural import counted
from kfm_dagster.recovery.replay.engine import Report
from kfm_dagster.recovery.replay.plan import PlannedReplay
from kfm_dagster.recovery.replay.runs import outcome_line
from kfm_dagster.recovery.replay.selection import Mode, Selection, load_selection, selection_from
from kfm_dagster.redaction import error_text
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.typed_numbers import LARGEST

Command = TypeVar("Command", bound=Callable[..., Any])

_META = "kfm_dagster.recovery"
FORMATS = ("table", "json", "yaml")
LEVELS = ("debug", "info", "warning", "error")
EXAMPLE_COLUMNS = ("wal_id", "dataset", "status", "attempts", "last_error_code", "event_time")

INSTEAD = {
    Status.FAILED: "remove the other conditions of the selection (error codes, attempts, times of discovery)",
    Status.QUARANTINED: "kfm units cases shows the reasons, kfm retry retries them",
    Status.PENDING: "a running deployment ingests them (kfm drain)",
    Status.IN_PROGRESS: "wait for the run that holds them",
    Status.SUCCEEDED: "nothing, or --mode repair-and-replace to repeat successes",
}
"""Next steps for an empty selection, by the status of the records that it left out, most urgent status first."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep a global option, typed before or after the command's name."""
    if value is not None:
        context.meta.setdefault(_META, {})[str(parameter.name)] = value


def global_options(command: Command) -> Command:
    """Add --env, --config, --output and --log-level to a command; `Shell` has their values."""
    global_option = functools.partial(click.option, expose_value=False, callback=_keep)
    for option in (
        global_option("--log-level", type=click.Choice(LEVELS), help="Minimum level of log lines. Default: warning."),
        global_option("--json", "output", flag_value="json", default=None, help="The same as --output json."),
        global_option("--output", type=click.Choice(FORMATS), help="How the answer is printed. Default: table."),
        global_option("--config", type=click.Path(path_type=Path), help="YAML file of settings (home, wal_dsn, ...)."),
        global_option("--env", type=click.Choice([env.value for env in Environment]), help="Overrides KFM_ENV."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True, slots=True)
class Shell:
    """A command's settings (from options, else environment, else --config) and output format."""

    settings: Settings
    output: str


def everywhere(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the global options to a command, as its `shell`. Raises ConfigurationError."""

    @functools.wraps(command)
    def with_shell(**arguments: Any) -> Any:
        options = click.get_current_context().meta.get(_META, {})
        logging.basicConfig(level=str(options.get("log_level", "warning")).upper())
        values = _config(options["config"]) if "config" in options else {}
        values |= {"env": options["env"]} if "env" in options else {}
        shell = Shell(settings=Settings.load(**values), output=options.get("output", "table"))
        return command(shell=shell, **arguments)

    return global_options(with_shell)


def _config(path: Path) -> dict[str, Any]:
    try:
        document = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(
            "--config cannot be read", observed=f"{path}: {error_text(error)}", next_step="give a YAML file of settings"
        ) from None
    names = set(Settings.model_fields)
    if not isinstance(document, dict) or (set(document) - names):
        observed = sorted(map(str, set(document) - names)) if isinstance(document, dict) else type(document).__name__
        raise ConfigurationError(
            f"{path} is not a file of settings",
            observed=observed,
            expected=f"a mapping of {', '.join(sorted(names))}",
            next_step="correct the file",
        )
    return {name: value for name, value in document.items() if f"KFM_{name.upper()}" not in os.environ}


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionOptions:
    """A command's selection: a `file`, or `parts` from typed options with the names `names`."""

    file: Path | None
    parts: Mapping[str, Any]
    names: str

    def selection(self, settings: Settings) -> Selection:
        """Return the validated selection. Raises ConfigurationError."""
        if self.file is None:
            parts = dict(self.parts)
            if "wal_ids" in parts:
                with opened_pipeline(settings, read_only=True) as pipeline, pipeline.database.snapshot() as tx:
                    parts["wal_ids"] = [UNIT.whole(tx, prefix) for prefix in parts["wal_ids"]]
            return selection_from(settings.env, "the options", **parts)
        if self.parts:
            raise ConfigurationError(
                "a selection file and selecting options exclude each other",
                observed=self.names,
                expected="one of the two",
                next_step="leave out either; kfm replay select --save writes a file",
            )
        return load_selection(self.file)


def _listed(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _moment(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        is_day = value is not None and len(value) == len("2025-12-04")
        return value and rfc3339(datetime.fromisoformat(f"{value}T00:00Z" if is_day else value))
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither a day (2025-12-04: midnight UTC) nor a time with its zone (2025-12-04T06:00:00Z)",
            param=parameter,
        ) from None


_SELECTING = (
    click.option(
        "--selection-file", type=click.Path(path_type=Path), help="Selection spec (YAML), instead of the options below."
    ),
    click.option("--name", help="Name of the replay."),
    click.option("--mode", type=click.Choice([mode.value for mode in Mode]), help="Mode. Default: failed-only."),
    click.option(
        *("--dataset", "--dataset-in", "datasets"),
        type=DATASET,
        multiple=True,
        callback=_listed,
        help="Only these datasets, separated by commas; may be repeated.",
    ),
    click.option(
        "--status",
        multiple=True,
        type=click.Choice([state.value for state in Status]),
        help="Only this status; may be repeated.",
    ),
    click.option(
        *("--error-code", "--error-code-in", "error_codes"),
        type=ERROR_CODE,
        multiple=True,
        callback=_listed,
        help="Only records with these last errors, separated by commas; may be repeated.",
    ),
    click.option("--first-day", type=DAY, help="Only records of this UTC day or later."),
    click.option("--last-day", type=DAY, help="Only records of this UTC day or earlier."),
    click.option(
        "--event-time-start",
        callback=_moment,
        help="Only objects written at this time (2025-12-04T00:00:00Z) or later.",
    ),
    click.option("--event-time-end", callback=_moment, help="Only objects written before this time."),
    click.option("--created-after", callback=_moment, help="Only objects discovered at this time or later."),
    click.option("--created-before", callback=_moment, help="Only objects discovered before this time."),
    click.option("--attempts-max", type=COUNT, help="Only records with at most this number of attempts."),
    click.option("--wal-id", "wal_ids", type=UNIT, multiple=True, help="Exactly this unit; may be repeated."),
    click.option("--limit", "max_records", type=POSITIVE, help="Maximum number of records, oldest event first."),
    click.option("--batch-size", type=POSITIVE, help="Number of units that are requeued at a time."),
    click.option("--max-batches", type=POSITIVE, help="Refuse a selection that needs more batches."),
    click.option(
        "--records-per-second", type=click.FloatRange(1, LARGEST), help="Maximum rate, below the environment's limit."
    ),
    click.option("--replay-reason", help=f"{REPLAY_REASON} Default: incident."),
    click.option("--incident", help="Reference of the incident; counts as a change reference."),
    click.option(
        "--allow-repair-and-replace", is_flag=True, default=None, help="Also repeat succeeded and quarantined units."
    ),
    click.option(
        "--must-match", is_flag=True, default=None, help="Repeat successes; a result that differs stops the replay."
    ),
    click.option("--allow-downgrade", is_flag=True, default=None, help="Also replace results of a newer release."),
    click.option(
        *("--skip-switched-off", "respect_kill_switch"),
        flag_value=False,
        default=None,
        help="Leave out units whose dataset is switched off.",
    ),
)


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the selecting options to a command, which gets their values as `options`."""

    def selected(*, selection_file: Path | None, **typed: Any) -> SelectionOptions:
        parts = {name: value for name, value in typed.items() if value not in (None, [], ())}
        known = {parameter.name: parameter.opts[0] for parameter in click.get_current_context().command.params}
        used = [*([] if selection_file is None else ["selection_file"]), *parts]
        return SelectionOptions(file=selection_file, parts=parts, names=", ".join(known[name] for name in used))

    return option_group(command, _SELECTING, "options", selected)


_STARTING = (
    click.option("--reason", help="Reason, recorded in the governance log. Default: the selection's description."),
    change_ref_option,
    actor_option,
    confirm_option,
    click.option("--detach", is_flag=True, help="Return after the start; the daemon carries the replay out."),
)


def starting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a replay's start: actor, reason, and whether to follow the replay."""
    for option in reversed(_STARTING):
        command = option(command)
    return command


def show(document: object, *, output: str, as_table: Callable[[], None]) -> None:
    """Print a document in the format `output`."""
    if output == "json":
        click.echo(json.dumps(document))
    elif output == "yaml":
        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
    else:
        as_table()


def show_plan(plan: PlannedReplay, *, output: str) -> None:
    """Print a plan: the units that the selection matches now."""
    show(plan.as_json(), output=output, as_table=lambda: _plan_table(plan))


def show_report(report: Report, *, output: str) -> None:
    """Print the progress of a replay."""
    show(report.as_json(), output=output, as_table=lambda: _report_table(report))


def nothing_selected(plan: PlannedReplay) -> str:
    """Return a line on an empty selection: the records that the ledger has, and the next step."""
    others = ", ".join(f"{count} {status}" for status, count in plan.others.items())
    step = next((step for status, step in INSTEAD.items() if status in plan.others), "kfm units list shows the records")
    return f"nothing is selected; these datasets and times have {others or 'no records'}; next: {step}"


def _plan_table(plan: PlannedReplay) -> None:
    document = plan.as_json()
    if not plan.units and not plan.listings:
        click.echo(nothing_selected(plan))
    more = ", and more match" if plan.more else ""
    days = plan.partitions
    span = f"{counted(len(days), 'day')}, {min(days)} to {max(days)}" if days else ""
    fields = {
        "records": f"{len(plan.units)}{more}",
        "admissible": document["admissible"],
        "batches": f"{plan.batches}, of at most {counted(plan.batch_size, 'unit')}",
        "partitions": span,
        "shortest duration": f"{plan.seconds:.0f} s, by the rate limits",
        "spec_sha256": document["spec_sha256"],
    }
    show_fields(fields | ({"listings": plan.listings} if plan.listings else {}))
    show_section("breakdown", document["breakdown"], ("dataset", "status", "error_code", "units"))
    show_section("examples", document["examples"], EXAMPLE_COLUMNS)
    if plan.skipped:
        show_section(
            "would be skipped",
            [{"reason": reason, "units": units} for reason, units in document["skipped"].items()],
            ("reason", "units"),
        )
    if plan.refusals:
        show_section("a run would be refused", document["refusals"], ("guard", "what", "observed", "expected"))


def _report_table(report: Report) -> None:
    run = report.run.as_json()
    fields = {name: value for name, value in run.items() if value is not None}
    show_fields(
        fields
        | {"units": report.account.units, "outcomes": outcome_line(report.account.outcomes)}
        | ({"skipped": dict(report.account.skipped)} if report.account.skipped else {})
        | ({"held by": str(report.hold)} if report.hold else {})
    )
    if report.differing:
        show_section("results that differ", report.differing, ("wal_id", "dataset", "attempt", "at"))
