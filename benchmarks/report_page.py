"""The form of docs/performance.md: tables of figures, their commands, and definitions.

Does not belong here: measuring (`report.py`).
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]
Rows = Mapping[str, Figures]

SUMMARY_LATENCY_MS = 50
"""Answer time of the store in the summary, about that of S3 within its region."""

HEAD = """# Performance

`make bench` measures every row on the machine where it runs, and writes this page. Product, queue and store share the
cores of one computer. {machine}

The measured deployment is that of a user: the code server, the daemon and forked runs, as `kfm ui --cloud aws` starts
them, with an SQS queue (fauxqs), and a store that answers each request after a given time
(`benchmarks/store_server.py`). A rate covers the time from the first record to the last settlement. CPU includes every
process of the deployment from its start on, and PostgreSQL; CPU of the queue and of the store is listed separately.
With fewer units the start has a larger share of the CPU.

Objects are sparse files of real size, so that sizes, offsets and range requests are real. Two parts are smaller than in
reality. HRRR samples have 3 or 4 messages instead of 173 to 1,200, so their index is short. A volume's first and last
records have a few KB instead of at most 270, so a real volume may cost two more requests.
"""

SUMMARY = """
## In short

The deployment, its queue and its store share the measured cores. An object is one file of NODD: a file of model fields,
a satellite scan, a radar volume.
"""

STORE = """
## A store that takes its time

Objects are read from the store, or from a folder in its place; database (SQLite), artifacts, catalog and lineage are on
the disk. The floor is a plain loop in one process per core (`benchmarks/floor.py`). Each process has as many parallel
reads as a run (`KFM_READ_CONCURRENCY`), but no ledger, retries, gates, checked lineage or any other guarantee. The
event loop does the same over a store, without threads (`benchmarks/async_floor.py`). The time of floor and event loop
begins when their processes have loaded everything; the product's time includes the start of its first run, some
seconds.
"""

REMOTE = """
## Everything far

The store answers after 50 ms, the queue after 20 ms; artifacts, catalog and lineage are in the store, too. In the row
of PostgreSQL, Dagster's own storage is in PostgreSQL, too. DBOS runs the same five steps as a durable workflow for each
message (`benchmarks/dbos_chain.py`), with as many processes and parallel reads as the floor. It stores each step's
output before the next step begins, but has no gates, no ledger, and as catalog only the Items.
"""

GROWTH = """
## Growth

Backlogs of increasing numbers of small objects: with more units the start has a smaller share of the CPU, and no other
cost per unit may grow. `records` is the number of succeeded records in the ledger before the backlog.
"""

INTAKE = """
## From the queue into the ledger

One process receives, lands, parses and records; a call of the queue takes 20 ms. Runs are not included.
"""

PRESSURE = """
## While a backup holds a snapshot

A backup or a forgotten session holds a snapshot for five minutes, and PostgreSQL removes no dead rows meanwhile. The
same work is measured before the snapshot, under it and after it: batches of 500 units of one dataset and day are
recorded, claimed and settled (`benchmarks/pressure.py`), at the maximum rate of the database. Only the ledger's calls
are timed. Milliseconds are per batch, in the phase's last minute.
"""

QUIET = """
## While nothing happens

Percent of one core, for a deployment that has ingested a unit and now has no work.
"""

CPU = """
## Where the processor time goes

Milliseconds per unit by process, for the rows above. `run` is the time of the runs after their fork. The code server
loads the definitions and evaluates sensors; the daemon starts ticks and runs. The columns in parentheses are not costs
of the product.
"""

WALL = """
## Where a run's time goes

Wall milliseconds per unit from the run-state record of the step before to the record of this step, including Dagster's
part. Several runs may work at the same time. message_parse is left out, because no record precedes it.
"""

LATENCY = """
## From the message to the Item

At least 200 units are published at an even rate to a running deployment with default settings (the sensor ticks every
5 s). A latency is the time from just before a message is sent to the settlement of its unit. If `unsettled` is not 0,
units failed. `run s` is the median duration of a run, `in a tick` the share of runs that ended before the next tick.
"""


def page(tables: Mapping[str, Rows], *, cores: int) -> str:
    """Return the document. A table without rows is left out."""
    every = {command: figures for rows in tables.values() for command, figures in rows.items()}
    store, remote, growth = (tables.get(name, {}) for name in ("store", "remote", "growth"))
    backlogs = {**store, **remote, **growth}
    parts = [HEAD.format(machine=_machine(every.values(), cores))]
    for text, rows, table in (
        (SUMMARY, {**store, **tables.get("latency", {}), **tables.get("quiet", {})}, _summary),
        (STORE, store, _rates),
        (REMOTE, remote, _rates),
        (GROWTH, growth, _growth),
        (CPU, backlogs, _cpu),
        (WALL, backlogs, _wall),
        (INTAKE, tables.get("intake", {}), _intake),
        (PRESSURE, tables.get("pressure", {}), _pressure),
        (LATENCY, tables.get("latency", {}), _latency),
        (QUIET, tables.get("quiet", {}), _quiet),
    ):
        if lines := list(table(rows.values())):
            parts.append(f"{text}\n{_table(lines)}\n")
    parts += ["\n## The commands\n\nEach with `--json`, in the order of the tables' rows.\n\n", _commands(every)]
    return "".join(parts)


def _machine(every: Sequence[Figures] | Any, cores: int) -> str:
    figures = list(every)
    if not figures:
        return "Nothing is measured yet."
    revisions = sorted({row["revision"] for row in figures})
    times, loads = sorted(row["measured_at"] for row in figures), [row["load"] for row in figures]
    return (
        f"Here: {cores} cores ({platform.machine()}), Python {platform.python_version()}, {times[0]} to {times[-1]}, "
        f"revision {', '.join(revisions)}. The load average (5 min) after a row was {min(loads):.1f} to "
        f"{max(loads):.1f}: above {cores}, processes waited for a core.{_calibration(figures)}"
    )


def _calibration(figures: Sequence[Figures]) -> str:
    times = [row["calibration_ms"] for row in figures if "calibration_ms" in row]
    if not times:
        return ""
    return (
        f" Other programs use the machine, too: a fixed piece of Python took {min(times):.0f} to {max(times):.0f} ms "
        "of CPU after a row. The tables list it as calibration, to compare rows."
    )


def _summary(rows: Any) -> Iterator[dict[str, str]]:
    """Rows for a newcomer: backlogs at SUMMARY_LATENCY_MS, latencies, and the cost when idle."""
    for row in rows:
        if "percent_of_a_core" in row:
            question = "What does a deployment cost while nothing arrives?"
            answer = f"{row['percent_of_a_core']:.1f} % of one core"
        elif "p95_seconds" in row:
            by = "`kfm worker`" if row["worker"] else "Dagster's sensors"
            question = f"How long from a message to its Item by {by}, at {row['rate']:g} a second?"
            answer = f"{_number(row['p50_seconds'], 1)} s; 95 % within {_number(row['p95_seconds'], 1)} s"
        elif row["store_latency_ms"] == SUMMARY_LATENCY_MS:
            question = (
                f"How many {row['dataset']} objects a second, from a store that answers in {SUMMARY_LATENCY_MS} ms?"
            )
            answer = f"{row['units_per_second']:.0f}, with {row['cpu_ms_per_unit']:.1f} ms of CPU each"
        else:
            continue
        yield {"question": question, "answer": answer}


def _place(row: Figures) -> dict[str, str]:
    return {
        "dataset": row["dataset"],
        "store": "folder" if row["store_latency_ms"] is None else f"{row['store_latency_ms']:g} ms",
        "database": row["database"],
        "kept in": "store" if row["all_remote"] else "disk",
        "units": f"{row.get('units') or row['published']:,}",
    }


def _rates(rows: Any) -> Iterator[dict[str, str]]:
    for row in rows:
        yield {
            **_place(row),
            "units/s": f"{row['units_per_second']:.1f}",
            "CPU ms/unit": f"{row['cpu_ms_per_unit']:.1f}",
            "requests/unit": _number(row["requests_per_unit"], 2),
            "KB read/unit": _number(row["bytes_per_unit"], 1, per=1000),
            "largest run, MiB": f"{row['peak_run_mib']:.0f}",
            "floor, units/s": _number(row["floor_per_second"], 1),
            "share of floor": _number(row["share_of_floor"], 2),
            "event loop, units/s": _number(row["async_floor_per_second"], 1),
            "share of event loop": _number(row["share_of_async_floor"], 2),
            **({"DBOS, units/s": _number(row["dbos_per_second"], 1)} if row["all_remote"] else {}),
        }


def _growth(rows: Any) -> Iterator[dict[str, str]]:
    for row, rates in zip(rows, _rates(rows), strict=True):
        yield {
            **{name: rates[name] for name in ("dataset", "database")},
            "records": f"{row['records']:,}",
            **{name: rates[name] for name in ("units", "units/s", "CPU ms/unit", "requests/unit", "largest run, MiB")},
            **_calibrated(row),
        }


def _intake(rows: Any) -> Iterator[dict[str, str]]:
    for row in rows:
        yield {
            "dataset": row["dataset"],
            "database": row["database"],
            "messages": f"{row['messages']:,}",
            "messages/s": f"{row['messages_per_second']:,.0f}",
            "CPU ms/message": f"{row['cpu_ms_per_message']:.2f}",
            **_calibrated(row),
        }


def _pressure(rows: Any) -> Iterator[dict[str, str]]:
    for row in rows:
        clean = row["phases"][0]["units_per_second"]
        for phase in row["phases"]:
            yield {
                "requested/s": f"{row['rate']:g}" if row["rate"] else "all",
                "snapshot": phase["name"],
                "units": f"{phase['units']:,}",
                "achieved/s": f"{phase['done_per_second']:,.0f}",
                "ledger, units/s": f"{phase['units_per_second']:,.0f}",
                "share of before": f"{phase['units_per_second'] / clean:.2f}",
                "in its first minute": f"{phase['first_per_second'] / clean:.2f}",
                "in its last minute": f"{phase['last_per_second'] / clean:.2f}",
                "WAL bytes/unit": f"{phase['wal_bytes_per_unit']:,.0f}",
                "commits/unit": f"{phase['commits_per_unit']:.3f}",
                "dead rows/unit": f"{phase['dead_rows'] / phase['units']:.2f}",
                **{f"{call}, ms": _number(took, 0) for call, took in phase["ms_per_batch"].items()},
            }


def _quiet(rows: Any) -> Iterator[dict[str, str]]:
    for row in rows:
        yield {
            "database": row["database"],
            "percent of a core": f"{row['percent_of_a_core']:.2f}",
            **{name: f"{share:.2f}" for name, share in row["by_process"].items()},
            **_calibrated(row),
        }


def _cpu(rows: Any) -> Iterator[dict[str, str]]:
    for row in rows:
        spent, servers = row["cpu_ms_per_unit_by_process"], row["servers_cpu_ms_per_unit"]
        names = {"run": "run", "code server": "code server", "daemon": "daemon", "database server": "database"}
        yield {
            **_place(row),
            **{title: _number(spent.get(name), 1) for title, name in names.items()},
            **{f"({name})": _number(servers.get(name), 1) for name in ("queue", "store")},
            **_calibrated(row),
        }


def _wall(rows: Any) -> Iterator[dict[str, str]]:
    steps = ("integrity_check", "metadata_extract", "stac_register", "provenance_emit", "settle")
    for row in rows:
        spent = row["wall_ms_per_unit_by_node"]
        yield {**_place(row), **{step: _number(spent.get(step), 1) for step in steps}, "runs": str(row["runs"])}


def _latency(rows: Any) -> Iterator[dict[str, str]]:
    for row in rows:
        yield {
            **_place(row),
            "worker": "yes" if row.get("worker") else "no",
            "requested/s": f"{row['rate']:g}",
            "published/s": f"{row['published_per_second']:.1f}",
            "p50 s": _number(row["p50_seconds"], 1),
            "p95 s": _number(row["p95_seconds"], 1),
            "p99 s": _number(row["p99_seconds"], 1),
            "run s": _number(row["run_p50_seconds"], 1),
            "in a tick": _number(row["runs_within_tick"], 2),
            "CPU ms/unit": f"{row['cpu_ms_per_unit']:.1f}",
            "unsettled": f"{row['published'] - row['succeeded']:,}",
            **_calibrated(row),
        }


def _calibrated(row: Figures) -> dict[str, str]:
    return {"(calibration)": _number(row.get("calibration_ms"), 0)}


def _number(value: float | None, digits: int, *, per: float = 1) -> str:
    return "" if value is None else f"{value / per:.{digits}f}"


def _table(rows: Sequence[dict[str, str]]) -> str:
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _commands(every: Rows) -> str:
    return "".join(f"    {command}\n" for command in every)
