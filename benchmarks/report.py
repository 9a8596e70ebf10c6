"""`make bench`: run the benchmarks and write docs/performance.md.

    python -m benchmarks.report [--units 10000] [--only-missing] [--match hrrr.*postgresql]

Each row is a separate command, which the document lists. The command's output is stored in `--home`, so that
rows can be measured one at a time. If a command fails, the report fails, and the document stays unchanged.
Belongs here: the list of commands, and running them. Does not belong here: the document's form (`report_page.py`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.command import in_one_line
from benchmarks.report_page import page
from kfm_dagster.cli.files import refuse_unwritable_home
from kfm_dagster.errors import DependencyUnavailableError

ROOT = Path(__file__).resolve().parent.parent
DATASETS = ("goes-abi", "nexrad-l2", "hrrr")
LATENCIES_MS = {"goes-abi": ("50",), "nexrad-l2": ("50",), "hrrr": ("0", "20", "50", "100")}
"""Answer times of the store. Only one dataset is measured with all of them, because the effect is the same in all."""
TABLES = ("store", "remote", "growth", "intake", "pressure", "latency", "quiet")
RATES = (1, 10, 50)
GROWTH = (1_000, 10_000)
LEDGERS = (0, 1_000_000)
DATABASES = ("sqlite", "postgresql")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row: the arguments after `python -m`, without the options of folder and format."""

    table: str
    arguments: tuple[str, ...]

    @property
    def keeps_files(self) -> bool:
        """Whether the command has an option for its folder."""
        return self.table not in {"pressure", "quiet"}

    @property
    def command(self) -> str:
        """The command as typed; the key of its figures."""
        return " ".join(("python -m", *self.arguments))


def cases(units: Sequence[int], seconds: int) -> list[Case]:
    """Return the rows of every table in order: backlogs of these sizes, latency over `seconds`."""
    return [Case(table=table, arguments=arguments) for table, arguments in _rows(units, seconds)]


def _rows(units: Sequence[int], seconds: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    for dataset, size in product(DATASETS, units):
        backlog = ("benchmarks.backlog", "--dataset", dataset, "--units", str(size), "--real-size")
        yield "store", (*backlog, "--floor")
        for latency in LATENCIES_MS[dataset]:
            yield "store", (*backlog, "--store-latency-ms", latency, "--floor")
    for database, size in product(DATABASES, units):
        backlog = ("benchmarks.backlog", "--dataset", "hrrr", "--units", str(size), "--real-size")
        far = ("--store-latency-ms", "50", "--queue-latency-ms", "20", "--all-remote", "--database", database)
        durable = ("--dbos",) if database == "postgresql" else ()
        yield "remote", (*backlog, *far, "--floor", *durable)
    for size in GROWTH:
        small = ("benchmarks.backlog", "--dataset", "nexrad-l2", "--units", str(size))
        yield "growth", (*small, "--store-latency-ms", "50")
    for database, records in product(DATABASES, LEDGERS):
        alike = ("--dataset", "hrrr", "--units", "10000", "--store-latency-ms", "50", "--database", database)
        yield "growth", ("benchmarks.backlog", *alike, "--records", str(records))
    for database in DATABASES:
        yield "intake", ("benchmarks.intake", "--queue-latency-ms", "20", "--database", database)
    yield "pressure", ("benchmarks.pressure", "--seconds", "300", "--clean-seconds", "60")
    for rate in RATES:
        paced = ("--rate", str(rate), "--seconds", str(seconds), "--real-size", "--store-latency-ms", "20")
        yield "latency", ("benchmarks.latency", *paced)
        yield "latency", ("benchmarks.latency", *paced, "--worker")
    yield "quiet", ("benchmarks.quiet",)


class Figures:
    """The output of commands, by command, in a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_command: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def keep(self, command: str, printed: dict[str, Any], revision: str) -> None:
        """Store a command's figures with time, load, speed of the machine and revision."""
        self.by_command[command] = {
            **printed,
            "measured_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M}Z",
            "load": os.getloadavg()[1],
            "calibration_ms": calibration_ms(),
            "revision": revision,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.by_command, indent=1), encoding="utf-8")


def calibration_ms() -> float:
    """CPU milliseconds of a fixed piece of Python: the present speed of a shared machine."""
    begun = time.process_time()
    sum(number * number for number in range(2_000_000))
    return 1000 * (time.process_time() - begun)


def measured(case: Case, home: Path) -> dict[str, Any]:
    """Run a case; return the figures of its last output line. Raises DependencyUnavailableError."""
    command = [sys.executable, "-m", *case.arguments, *(("--home", str(home)) if case.keeps_files else ()), "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603, our own
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise DependencyUnavailableError(
            "a benchmark failed", observed=f"exit code {done.returncode} of {case.command}", next_step="run it alone"
        )
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is no regular expression: {error}", param_hint="--match") from None


def _revision() -> str:
    """Return the commit; `-dirty` if files have changed since, apart from the page that this command writes."""
    commit = _git("describe", "--always").stdout.strip()
    changed = _git("diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs/performance.md").returncode == 1
    return f"{commit or 'unknown'}{'-dirty' * changed}"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--units",
    default=[10_000],
    multiple=True,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Units of each backlog; repeat the option for further sizes.",
)
@click.option("--seconds", default=60, show_default=True, type=click.IntRange(1, 3600), help="Seconds of publishing.")
@click.option("--match", default="", help="Measure only commands that match this regular expression.")
@click.option("--only-missing", is_flag=True, help="Measure only rows without figures of this size.")
@click.option("--home", type=click.Path(path_type=Path, file_okay=False), default=Path(".kfm/bench"), show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=ROOT / "docs" / "performance.md",
    help="The document; default: docs/performance.md.",
)
def main(*, units: Sequence[int], seconds: int, match: str, only_missing: bool, home: Path, out: Path) -> None:
    """Measure every row of docs/performance.md and write it; rows without figures are left out.

    Example: python -m benchmarks.report --units 500 --match latency
    """
    refuse_unwritable_home(home)
    figures, every = Figures(home / "performance.json"), cases(units, seconds)
    selected = [
        case
        for case in every
        if _pattern(match).search(case.command) and not (only_missing and case.command in figures.by_command)
    ]
    for case in selected:
        click.echo(case.command, err=True)
        figures.keep(case.command, measured(case, home.absolute()), _revision())
    rows = {
        table: {
            case.command: figures.by_command[case.command]
            for case in every
            if case.table == table and case.command in figures.by_command
        }
        for table in TABLES
    }
    out.write_text(page(rows, cores=os.cpu_count() or 1), encoding="utf-8")
    click.echo(str(out))


if __name__ == "__main__":
    sys.exit(in_one_line("report", main))
