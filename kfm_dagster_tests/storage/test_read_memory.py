"""The S3 client's memory per request, and when it is released; `make bench` measures the memory of a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from kfm_dagster_tests.programs import printed_by

AT_ONCE = 64
BODY, PIECE = 128 * 1024, 8 * 1024
"""Bytes of an answer, and of the pieces in which the server sends it."""
READING = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from kfm_dagster.storage.s3 import S3Bucket

endpoint, threads, body = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
bucket = S3Bucket("b", endpoint=endpoint, region="us-east-1", seconds=30, anonymous=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(threads) as pool:
    read = list(pool.map(lambda _: len(bucket.get("k", options={"range": (0, body)}).bytes()), range(threads)))
assert read == [body] * threads
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize(("variables", "delay"), [({}, "0"), ({"MIMALLOC_PURGE_DELAY": "25"}, "25")])
def test_the_client_releases_memory_immediately_unless_a_delay_is_set(variables: dict[str, str], delay: str) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MIMALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", "import kfm_dagster.storage.s3"],
        # mimalloc prints its options when it is loaded.
        env={**environment, "MIMALLOC_VERBOSE": "1", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"option 'purge_delay': {delay} " in done.stderr


def test_a_read_uses_a_small_multiple_of_its_bytes() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=AT_ONCE) as server:
        together = threading.Barrier(AT_ONCE, timeout=60)
        answering = [
            threading.Thread(target=_answer_in_pieces, args=(server, together), daemon=True) for _ in range(AT_ONCE)
        ]
        for thread in answering:
            thread.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        grown = printed_by(sys.executable, "-c", READING, endpoint, str(AT_ONCE), str(BODY))
    assert int(grown) < 16 * AT_ONCE * BODY


def _answer_in_pieces(server: socket.socket, together: threading.Barrier) -> None:
    """Answer a request in pieces, in step with all other answers, so that all requests stay in flight."""
    connection, _ = server.accept()
    with connection:
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(65_536)
        head = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {BODY}\r\nContent-Range: bytes 0-{BODY - 1}/{BODY}\r\n"
        connection.sendall(head.encode() + b"\r\n")
        for _ in range(BODY // PIECE):
            together.wait()
            connection.sendall(bytes(PIECE))
