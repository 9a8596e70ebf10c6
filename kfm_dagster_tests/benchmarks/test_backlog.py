"""What the benchmark counts, every process of a deployment included, and the figures that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import backlog
from benchmarks.backlog import BenchResult, main
from benchmarks.processes import CODE_SERVER, RUN, cpu_seconds_by_process, cpu_seconds_of
from kfm_dagster.errors import ExitCode

BURNT_SECONDS = 0.4
RUNS = f"""
import multiprocessing, sys, time

def run():
    while time.process_time() < {BURNT_SECONDS}:
        pass

if __name__ == "__main__":
    # As the code server does: a process of its own forks the runs, and waits for them.
    context = multiprocessing.get_context("forkserver")
    runs = [context.Process(target=run) for _ in range(2)]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    print("done", flush=True)
    sys.stdin.read()
"""


def test_the_cpu_of_runs_that_have_ended_is_counted(tmp_path: Path) -> None:
    script = tmp_path / "runs.py"
    script.write_text(RUNS, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "done\n"
        assert cpu_seconds_of([server.pid]) >= 2 * BURNT_SECONDS
        by_process = cpu_seconds_by_process({CODE_SERVER: server.pid})
        # The system rounds each time down to hundredths of a second.
        assert by_process[RUN] >= 2 * BURNT_SECONDS - 0.04
        assert by_process[CODE_SERVER] + by_process[RUN] == pytest.approx(cpu_seconds_of([server.pid]), abs=0.1)
        server.communicate()


def test_people_read_rounded_figures_and_scripts_whole_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = BenchResult(
        dataset="hrrr",
        units=7,
        database="sqlite",
        units_per_second=16.17057367939978,
        cpu_ms_per_unit=2 / 3,
        peak_run_mib=100.0,
        runs=1,
        floor_per_second=32.34114735879956,
    )
    monkeypatch.setattr(backlog, "run_bench", lambda *_, **__: result)
    printed = CliRunner().invoke(main, ["--home", str(tmp_path)], catch_exceptions=False).stdout
    rows = {words[0]: words[1:] for line in printed.splitlines() if (words := line.split())}
    assert (rows["units_per_second"], rows["cpu_ms_per_unit"]) == (["16.1706"], ["0.666667"])
    assert (rows["share_of_floor"], rows["run_per_message_per_second"]) == (["0.5"], ["none"])
    whole = CliRunner().invoke(main, ["--home", str(tmp_path), "--json"], catch_exceptions=False).stdout
    assert json.loads(whole) == result.as_json()


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--units", "0"], {}, "--units"),
        (["--home", "/proc/x"], {}, "/proc/x: "),
        (["--all-remote"], {}, "--store-latency-ms"),
        (["--units", "1"], {"KFM_CONFIGS_DIR": "nowhere"}, "KFM_CONFIGS_DIR is no folder; observed nowhere"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started_or_made(
    arguments: list[str], variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    # Without a PATH nothing can be installed or started.
    environment = {**os.environ, "PATH": str(tmp_path), **variables}
    command = [sys.executable, "-m", "benchmarks.backlog", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
