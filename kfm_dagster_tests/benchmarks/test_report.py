"""`make bench` measures each row; the documents have the costs computed from it; `make soak` runs its parts."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import report, soak
from benchmarks.backlog import BenchResult
from benchmarks.cost import PERFORMANCE, costs, objects_a_day, tables
from benchmarks.latency import percentiles
from benchmarks.pressure import CALLS, Phase
from benchmarks.processes import CODE_SERVER, RUN, cpu_seconds_by_process, cpu_seconds_of
from benchmarks.report import Case, cases, main
from benchmarks.surroundings import Place
from kfm_dagster.contracts.loader import ContractRegistry

ROWS = cases([7], 3)


def phase(name: str, rate: float) -> dict[str, Any]:
    """Return the measurements of a phase."""
    measured = Phase(
        name=name,
        units=100,
        done_per_second=rate,
        units_per_second=rate,
        first_per_second=rate + 50,
        last_per_second=rate - 50,
        wal_bytes_per_unit=9_000,
        commits_per_unit=0.01,
        hot_share=0,
        dead_rows=250,
        mebibytes=10,
        ms_per_batch=dict.fromkeys(CALLS, 2.0),
    )
    return vars(measured)


def figures(case: Case) -> dict[str, Any]:
    """Return the figures that a row's command prints."""
    arguments = dict(zip(case.arguments, case.arguments[1:], strict=False))
    place = Place(
        database=arguments.get("--database", "sqlite"),
        store_latency_ms=float(arguments["--store-latency-ms"]) if "--store-latency-ms" in arguments else None,
        all_remote="--all-remote" in case.arguments,
        real_size=True,
    )
    if case.table == "intake":
        received = {"messages": 20, "messages_per_second": 2_000.0, "cpu_ms_per_message": 0.25}
        return {"dataset": "hrrr", "database": place.database, **received}
    if case.table == "pressure":
        rate = float(arguments.get("--rate", 0))
        return {"rate": rate, "phases": [phase(name, done) for name, done in (("before", 1_000.0), ("under", 920.0))]}
    if case.table == "quiet":
        return {"database": "sqlite", "percent_of_a_core": 1.9, "by_process": {"code server": 1.5, "daemon": 0.4}}
    if case.table == "latency":
        settled = {
            "worker": False,
            "published": 15,
            "succeeded": 14,
            "rate": float(arguments["--rate"]),
            "published_per_second": 4.9,
            "run_p50_seconds": 6.25,
            "runs_within_tick": 0.5,
        }
        return {"dataset": "nexrad-l2", **settled, **vars(place), **percentiles([1.0, 2.0]), "cpu_ms_per_unit": 4.0}
    return BenchResult(
        dataset=arguments["--dataset"],
        units=int(arguments["--units"]),
        units_per_second=123.4,
        cpu_ms_per_unit=8.0,
        peak_run_mib=300,
        runs=1,
        records=int(arguments.get("--records", 0)),
        requests_per_unit=2.25,
        bytes_per_unit=4_000,
        floor_per_second=246.8,
        async_floor_per_second=493.6 if "--store-latency-ms" in case.arguments else None,
        dbos_per_second=61.7 if "--dbos" in case.arguments else None,
        cpu_ms_per_unit_by_process={"run": 3.0, "daemon": 5.0, "database": 2.0},
        **vars(place),
    ).as_json()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    commands: list[str] = []

    def measured(case: Case, _home: Path) -> dict[str, Any]:
        commands.append(case.command)
        return figures(case)

    monkeypatch.setattr(report, "measured", measured)
    return commands


def called(tmp_path: Path, *arguments: str) -> Path:
    out = tmp_path / "performance.md"
    options = ["--units", "7", "--seconds", "3", "--home", str(tmp_path / "home"), "--out", str(out), *arguments]
    CliRunner().invoke(main, options, catch_exceptions=False, standalone_mode=False)
    return out


def test_every_row_is_measured_and_printed_with_its_command(tmp_path: Path, ran: list[str]) -> None:
    text = called(tmp_path).read_text()
    assert ran == [case.command for case in ROWS]
    assert all(f"    {command}\n" in text for command in ran)
    rates = "7 | 123.4 | 8.0 | 2.25 | 4.0 | 300 | 246.8 | 0.50 | 493.6 | 0.25"
    assert f"| hrrr | 100 ms | sqlite | disk | {rates} |" in text
    assert f"| hrrr | 50 ms | postgresql | store | {rates} | 61.7 |" in text
    assert "| hrrr | folder | sqlite | disk | 7 | 123.4" in text
    assert "| nexrad-l2 | sqlite | 0 | 10,000 | 123.4" in text
    assert "| hrrr | postgresql | 1,000,000 | 10,000 | 123.4" in text
    assert "| hrrr | postgresql | 20 | 2,000 | 0.25 |" in text
    assert "| all | under | 100 | 920 | 920 | 0.92 | 0.97 | 0.87 | 9,000 | 0.010 | 2.50 | 2 | 2 | 2 | 2 | 2 |" in text
    assert "| sqlite | 1.90 | 1.50 | 0.40 |" in text
    assert "| nexrad-l2 | 20 ms | sqlite | disk | 15 | no | 50 | 4.9 | 1.5 |" in text
    assert "| hrrr | 50 ms | postgresql | store | 7 | 3.0 |  | 5.0 | 2.0 |" in text


def test_single_rows_can_be_measured(tmp_path: Path, ran: list[str]) -> None:
    called(tmp_path, "--match", "latency --rate 1 .*20$")
    assert len(ran) == 1
    text = called(tmp_path, "--match", r"benchmarks\.latency", "--only-missing").read_text()
    assert ran == [case.command for case in ROWS if case.table == "latency"]
    assert all(command in text for command in ran)
    assert "A store that takes its time" not in text


BURNT_SECONDS = 0.4
RUNS = f"""
import multiprocessing, sys, time

def run():
    while time.process_time() < {BURNT_SECONDS}:
        pass

if __name__ == "__main__":
    # As in the code server, a separate process forks the runs and waits for their ends.
    context = multiprocessing.get_context("forkserver")
    runs = [context.Process(target=run) for _ in range(2)]
    for process in runs:
        process.start()
    for process in runs:
        process.join()
    print("done", flush=True)
    sys.stdin.read()
"""


def test_the_cpu_of_runs_that_have_ended_is_counted(tmp_path: Path) -> None:
    script = tmp_path / "runs.py"
    script.write_text(RUNS, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline() == "done\n"
        assert cpu_seconds_of([server.pid]) >= 2 * BURNT_SECONDS
        by_process = cpu_seconds_by_process({CODE_SERVER: server.pid})
        # The system rounds each time down to hundredths of a second.
        assert by_process[RUN] >= 2 * BURNT_SECONDS - 0.04
        assert by_process[CODE_SERVER] + by_process[RUN] == pytest.approx(cpu_seconds_of([server.pid]), abs=0.1)
        server.communicate()


DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"


def test_the_guide_has_the_tables_computed_from_the_prices(contracts: ContractRegistry) -> None:
    assert tables(costs(), contracts) in DEPLOY.read_text(encoding="utf-8")


def test_each_price_and_each_assumption_changes_the_costs() -> None:
    base = costs()
    total = {**base.per_unit(1e6), **base.fixed()}
    for group in ("prices", "assumptions"):
        for name, value in getattr(base, group).items():
            other = replace(base, **{group: {**getattr(base, group), name: 2 * value}})
            assert {**other.per_unit(1e6), **other.fixed()} != total, name


def test_objects_that_come_only_in_some_hours_are_counted_only_in_these(contracts: ContractRegistry) -> None:
    assert objects_a_day(contracts["nexrad-l2"]) == 24 * 1300
    assert objects_a_day(contracts["ocean"]) == 1


def test_costs_are_refused_if_their_row_was_not_measured(tmp_path: Path) -> None:
    (tmp_path / "performance.md").write_text(PERFORMANCE.read_text(encoding="utf-8").replace("| hrrr |", "| gfs |"))
    with pytest.raises(LookupError, match="make bench"):
        costs(performance=tmp_path / "performance.md")


NAMES = [part.name for part in soak.parts(1)]


@pytest.mark.parametrize("part", soak.parts(1), ids=lambda part: part.name)
def test_the_options_of_each_part_s_command_exist(part: soak.Part) -> None:
    flag, module, *arguments = part.command
    assert flag == "-m"
    if module == "pytest":
        paths = [soak.ROOT / text for text in arguments if text.endswith(".py")]
        assert all(name in path.read_text(encoding="utf-8") for path in paths for name in part.variables)
        return
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{module}.__main__")
    source = Path(spec.origin).read_text(encoding="utf-8")
    for option in (text for text in arguments if text.startswith("--")):
        assert f'"{option}"' in source


def test_a_scale_that_is_not_a_fraction_gives_one_error_line(capfd: pytest.CaptureFixture[str]) -> None:
    for scale in ("", "a tenth", "-x", "0", "-1", "1.01", "nan", "inf"):
        assert soak.main([f"--scale={scale}"]) == 2
        out, err = capfd.readouterr()
        assert (out, err) == ("", f"soak: SCALE is a number above 0, at most 1; observed {scale!r}\n")


def test_an_unknown_part_gives_one_error_line_with_the_known_parts(capfd: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["simulation", "mial-sqlite"]) == 2
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"soak: no part mial-sqlite; there are {', '.join(NAMES)}\n")


def test_the_figures_of_a_part_are_printed_before_the_next_part_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "figures"
    first = soak.Part(name="first", command=("-c", "print('noise'); print('a figure')"))
    second = soak.Part(name="second", command=("-c", f"print(open({str(path)!r}).read(), end=''); exit(3)"))
    with path.open("w", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdout", file)
        assert soak.soak([first, second]) == 1
    assert [line.partition(", ")[0] for line in path.read_text(encoding="utf-8").splitlines()] == [
        "first: passed",
        "    a figure",
        "second: FAILED with exit code 3",
        "    first: passed",
        "        a figure",
    ]


def test_the_arguments_of_make_soak_are_passed_to_the_soak() -> None:
    command = ["make", "-n", "soak", "PART=simulation mail-sqlite", "SCALE=0.1"]
    done = subprocess.run(command, cwd=soak.ROOT, capture_output=True, text=True, check=True)
    assert 'benchmarks.soak --scale="0.1" simulation mail-sqlite' in done.stdout
