"""Run a deployment on one machine: code server, daemon, web server and console.

The commands are those of production, with loopback ports and a DAGSTER_HOME below KFM_HOME. The process that starts the
servers supervises them, and ends only processes that it started, by pid.
"""

from __future__ import annotations

import http.client
import math
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

import yaml

from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.ingest.window import stored_first_day
from kfm_dagster.settings import Settings
from kfm_dagster.storage.private import private_folder

START_SECONDS = 120
"""Longest wait for a server's first answer; importing Dagster takes seconds on a busy machine."""
STOP_SECONDS = 20
WINDOW_POLL_SECONDS = 5.0
"""Interval of looking up the partitions' first day, which a backfill may have lowered."""
PORTS = range(20_000, 30_000)
"""Below the ports of outgoing connections (Linux: from 32,768). If a server's port were one of those, a client that
connects before the server listens might be connected to itself, and read its own request as the answer."""
MAX_DEATHS = 5
DEATH_WINDOW_SECONDS = 300.0
"""MAX_DEATHS deaths within this time show a fault that a restart does not repair."""


class Deployment:
    """Code server, daemon, web server and console over a KFM_HOME; a context manager."""

    def __init__(
        self,
        home: Path,
        *,
        environment: Mapping[str, str],
        web_port: int | None = None,
        console_port: int | None = None,
        daemon: bool = True,
        dagster_yaml: str | None = None,
        module: str = "kfm_dagster.definitions",
    ) -> None:
        self.home = home.absolute()
        self.dagster_home = self.home / "dagster"
        self.web_port = web_port
        self.console_port = console_port
        self._module = module
        self._with_daemon = daemon
        variables = {**os.environ, **environment}
        self._dagster_yaml = dagster_yaml or dagster_yaml_for(variables, self.dagster_home)
        self._environment = {
            **variables,
            **_paths_from_here(variables),
            "KFM_HOME": str(self.home),
            "DAGSTER_HOME": str(self.dagster_home),
            "PYTHONUNBUFFERED": "1",
        }
        self._commands: dict[str, Sequence[str]] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._first_day = date.min
        self._looked_at = -math.inf

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Address of the web server."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def console_url(self) -> str:
        """Address of the console."""
        return f"http://127.0.0.1:{self.console_port}"

    def start(self) -> None:
        """Start every part and await its answer. Raises DependencyUnavailableError naming the log."""
        private_folder(self.dagster_home)
        (self.dagster_home / "dagster.yaml").write_text(self._dagster_yaml, encoding="utf-8")
        port = free_port()
        workspace = self.dagster_home / "workspace.yaml"
        workspace.write_text(
            "load_from:\n  - grpc_server:\n"
            f"      host: 127.0.0.1\n      port: {port}\n      location_name: kfm_dagster\n",
            encoding="utf-8",
        )
        self._first_day = self._stored_first_day()
        # Before any part opens the home, because only one process may create Dagster's tables (instance_storage.py).
        self._prepare_storage()
        # `dagster code-server start` is not used: its proxy outlives a killed server, without restart or report.
        self._spawn(
            "code-server",
            ["python", "-m", "kfm_dagster.defs.code_server", "-m", self._module, "-h", "127.0.0.1", "-p", str(port)],
        )
        self._wait("code-server", lambda: accepts(port))
        if self._with_daemon:
            # Sensors, run queue, run monitoring, backfills.
            self._spawn("daemon", ["dagster-daemon", "run", "-w", str(workspace)])
        if self.web_port is not None:
            address = ["-h", "127.0.0.1", "-p", str(self.web_port)]
            self._spawn("webserver", ["python", "-m", "kfm_dagster.defs.web_server", *address, "-w", str(workspace)])
            self._wait("webserver", lambda: _serves(f"{self.url}/server_info"))
        if self.console_port is not None:
            self._spawn("console", ["kfm", "console", "--port", str(self.console_port)])
            self._wait("console", lambda: _serves(f"{self.console_url}/healthz"))

    def tend(self) -> None:
        """Restart parts that died, and the code server if the partitions now begin earlier.

        Raises DependencyUnavailableError when parts keep dying.
        """
        self._reload_lowered_window()
        for name, child in list(self._children.items()):
            if child.poll() is None:
                continue
            self._deaths.append(time.monotonic())
            if len(self._deaths) == MAX_DEATHS and self._deaths[-1] - self._deaths[0] < DEATH_WINDOW_SECONDS:
                raise DependencyUnavailableError(
                    "parts of the deployment keep dying",
                    observed=f"the {name} ended with exit code {child.poll()}, "
                    f"the {MAX_DEATHS}th end within {DEATH_WINDOW_SECONDS:.0f} s",
                    next_step=f"read {self.log(name)}",
                )
            self._spawn(name, self._commands[name])

    def _reload_lowered_window(self) -> None:
        """Restart the code server when the partitions begin earlier than its definitions know.

        Runs are processes of their own and continue; daemon and web server notice the new server.
        """
        if time.monotonic() - self._looked_at < WINDOW_POLL_SECONDS:
            return
        self._looked_at = time.monotonic()
        if (first_day := self._stored_first_day()) < self._first_day:
            self._first_day = first_day
            server = self._children["code-server"]
            server.terminate()
            _end(server)
            self._spawn("code-server", self._commands["code-server"])

    def _stored_first_day(self) -> date:
        return stored_first_day(Settings.load(home=self.home), clock=utc_now)

    def kill(self, name: str) -> None:
        """Kill a child with SIGKILL, as a crash would."""
        child = self._children[name]
        child.kill()
        child.wait()

    def stop(self) -> None:
        """Stop all parts together; kill parts that do not end in time."""
        children = list(self._children.values())
        self._children.clear()
        for child in children:
            child.terminate()
        for child in children:
            _end(child)

    def log(self, name: str) -> Path:
        """Return the log file of a child."""
        return self.home / "logs" / f"{name}.log"

    def pids(self) -> list[int]:
        """Return the process ids of the children."""
        return [child.pid for child in self._children.values()]

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        self._commands[name] = command
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        executable = Path(sys.executable).parent / command[0]
        with log.open("ab") as output:
            self._children[name] = subprocess.Popen(  # noqa: S603, our own entry points
                [str(executable), *command[1:]],
                cwd=self.home,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _prepare_storage(self) -> None:
        if (self.dagster_home / "history" / "runs.db").is_file() and not self._environment.get("KFM_DAGSTER_DSN"):
            return
        name = "storage"
        self._spawn(name, ["python", "-m", "kfm_dagster.defs.instance_storage", str(self.dagster_home)])
        if self._children.pop(name).wait(timeout=START_SECONDS) != 0:
            raise DependencyUnavailableError(
                "Dagster's storage cannot be created",
                observed=self.log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1],
                next_step=f"read {self.log(name)}",
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._children[name].poll() is not None:
                break
            if ready():
                return
            time.sleep(0.2)
        raise DependencyUnavailableError(
            f"the {name} did not start",
            observed=f"exit code {self._children[name].poll()}",
            expected=f"an answer within {START_SECONDS} s",
            next_step=f"read {self.log(name)}",
        )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Wait for a terminated child; kill it after STOP_SECONDS."""
    try:
        child.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def dagster_yaml_for(environment: Mapping[str, str], dagster_home: Path) -> str:
    """Return the repository's dagster.yaml with the environment's storage and compute logs.

    The wheel contains a copy of the file.
    """
    bundled = resources.files("kfm_dagster") / "_bundled" / "dagster.yaml"
    file = bundled if bundled.is_file() else Path(__file__).resolve().parents[2] / "dagster.yaml"
    overrides: dict[str, Any] = {}
    if environment.get("KFM_DAGSTER_DSN"):
        # Only `kfm init` creates tables (defs/instance_storage.py).
        address = {"postgres_url": {"env": "KFM_DAGSTER_DSN"}, "should_autocreate_tables": False}
        overrides["storage"] = {"postgres": address}
    if url := environment.get("KFM_COMPUTE_LOGS_URL"):
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        config = {"bucket": bucket, "local_dir": str(dagster_home / "storage")} | ({"prefix": prefix} if prefix else {})
        manager = {"module": "dagster_aws.s3.compute_log_manager", "class": "S3ComputeLogManager", "config": config}
        overrides["compute_logs"] = manager
    return file.read_text(encoding="utf-8") + (yaml.safe_dump(overrides, sort_keys=False) if overrides else "")


def free_port() -> int:
    """Return a loopback port that was free a moment ago. Raises DependencyUnavailableError."""
    for _ in range(100):
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise DependencyUnavailableError(
        "no port is free",
        observed=f"a hundred random ports between {PORTS[0]} and {PORTS[-1]} are taken",
        next_step="end processes that listen there",
    )


def accepts(port: int) -> bool:
    """Return whether a server listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310, a loopback address made above
            return bool(answer.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def _paths_from_here(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the path variables of `Settings`, absolute, because servers run in another folder."""
    fields = Settings.model_fields.items()
    names = [f"KFM_{name.upper()}" for name, field in fields if Path in {field.annotation, *get_args(field.annotation)}]
    return {name: str(Path(environment[name]).absolute()) for name in names if environment.get(name)}
