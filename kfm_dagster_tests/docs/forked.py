"""`kfm` and `python` for the documents' commands: forks of a process with all imports.

Imports take two of a command's three CPU seconds. The shell starts a small client that sends its arguments, folder,
environment and streams to `serve`, which forks. The client forwards signals and exits with the command's code.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kfm_dagster_tests.timeouts import until

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    received = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(received).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(received)
    child = int(server.recv(16))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    sys.exit(int(server.recv(16) or 1))
"""


@contextmanager
def commands_of_forks(folder: Path) -> Iterator[str]:
    """Serve `kfm` and `python` below a folder; yield the PATH that has them."""
    address = folder / "forks.sock"
    for name in ("kfm", "python"):
        client = folder / name
        client.write_text(CLIENT.format(python=sys.executable, address=str(address), name=name), encoding="utf-8")
        client.chmod(0o755)
    with subprocess.Popen([sys.executable, "-m", __name__, str(address)]) as process:
        try:
            until(lambda: address.exists() or process.poll() is not None)
            assert process.poll() is None, "the server of the commands has ended"
            yield os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
        finally:
            process.kill()


def serve(address: str) -> None:
    """Fork for each command."""
    package = importlib.import_module("kfm_dagster.cli")
    commands = (module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    for module in ("duckdb", "pandas", *commands):
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombie processes
        while True:
            client, _ = listening.accept()
            with client:
                if os.fork() == 0:
                    listening.close()
                    answer(client)


def answer(client: socket.socket) -> None:
    """Run a command in a fork, and send its exit code to the client."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, *_ = socket.recv_fds(client, 4, 3)
    received = b""
    while len(received) < int.from_bytes(size, "big"):
        received += client.recv(1 << 16)
    name, arguments, folder, environment = json.loads(received)
    if (child := os.fork()) == 0:
        client.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        run(name, arguments)
    for stream in streams:
        os.close(stream)
    client.sendall(f"{child:<16}".encode())
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    client.sendall(str(ended if ended >= 0 else 128 - ended).encode())
    os._exit(0)


def run(name: str, arguments: Sequence[str]) -> None:
    """Run the command in this process, and exit."""
    code = 0
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    try:
        match name, *arguments:
            case "kfm", *_:
                from kfm_dagster.cli.main import main

                sys.argv = ["kfm", *arguments]
                main(arguments)
            case _, "-m", module, *more:
                sys.path[0], sys.argv = str(Path.cwd()), [module, *more]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case _, "-c", text, *more:
                sys.path[0], sys.argv = "", ["-c", *more]
                exec(text, {"__name__": "__main__"})
            case _, script, *more:
                sys.path[0], sys.argv = str(Path(script).resolve().parent), [script, *more]
                runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)  # noqa: T201
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
