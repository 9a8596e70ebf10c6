"""A server as a child process: started on a free loopback port, awaited, fully stopped.

The child itself binds port 0, and its first line of output is the port that the system chose. So no other process can
take the port in between. The child ends when its standard input ends, so that it never outlives its parent, even if the
parent is killed. Does not belong here: the servers and their use.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from kfm_dagster.errors import DependencyUnavailableError

START_SECONDS = 30.0
"""Longest wait for a child to listen: a cold start takes 2 s on a laptop, and ten times as long on a loaded CI machine
with a cold file cache."""
STOP_SECONDS = 5.0
"""Longest wait for a child to end by itself before it is killed."""


class ChildServer:
    """A child process that serves on loopback, from `start` to `stop` or within a context."""

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        next_step: str | None = None,
    ) -> None:
        """`next_step` is the advice if the child does not start."""
        self.name = name
        self._command = list(command)
        self._environment = dict(environment)
        self._folder = folder
        self._next_step = next_step
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._port = 0

    @property
    def endpoint_url(self) -> str:
        """`http://127.0.0.1:PORT`. Raises DependencyUnavailableError before the start."""
        if not self._port:
            raise DependencyUnavailableError(f"{self.name} is not started", next_step="enter it with `with`")
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running child; None without a child."""
        return None if self._process is None else self._process.pid

    def start(self) -> Self:
        """Start the child and wait until it listens.

        A failed start leaves no process and raises DependencyUnavailableError.
        """
        # A file instead of a pipe, because without a reader a full pipe would stop the server.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours, no shell
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=self._folder,
                env=self._environment,
                bufsize=0,
                # Ctrl-C in a terminal must reach only the parent, which needs the server until its own end.
                start_new_session=True,
            )
            self._port = self._read_port(self._process)
        except OSError as error:
            self.stop()
            raise DependencyUnavailableError(
                f"{self.name} cannot be started", observed=error, next_step=self._next_step
            ) from None
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the child: by request, then by force. Does nothing if no child is running."""
        process, self._process, self._port = self._process, None, 0
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read_port(self, process: subprocess.Popen[bytes]) -> int:
        if process.stdout is None:
            raise AssertionError("the child was started with a pipe for its output")
        descriptor = process.stdout.fileno()
        deadline = time.monotonic() + START_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(descriptor, 64) if ready else b""
            if not part:
                what = "ended before it listened" if ready else f"did not listen within {START_SECONDS:.0f} s"
                raise DependencyUnavailableError(
                    f"{self.name} {what}", observed=self._last_words(), next_step=self._next_step
                )
            line += part
        return int(line)

    def _last_words(self) -> str:
        """Return the last line that the child wrote to its standard error."""
        if self._log is None:
            return "no output"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


def end_with_parent() -> None:
    """End this Python child when its standard input ends, however the parent died."""

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os._exit(0)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
