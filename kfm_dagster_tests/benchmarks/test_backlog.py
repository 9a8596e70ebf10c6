"""What the benchmark counts, every process of a deployment included, and the figures that it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import CODE_SERVER, RUN, cpu_seconds_by_process, cpu_seconds_of

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
        assert server.stdout.readline() == "done\n"
        assert cpu_seconds_of([server.pid]) >= 2 * BURNT_SECONDS
        by_process = cpu_seconds_by_process({CODE_SERVER: server.pid})
        # The system rounds each time down to hundredths of a second.
        assert by_process[RUN] >= 2 * BURNT_SECONDS - 0.04
        assert by_process[CODE_SERVER] + by_process[RUN] == pytest.approx(cpu_seconds_of([server.pid]), abs=0.1)
        server.communicate()
