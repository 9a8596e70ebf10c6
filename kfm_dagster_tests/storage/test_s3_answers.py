"""The client of S3 before a store that answers a ranged request with something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from obstore.exceptions import GenericError

from kfm_dagster.storage.s3 import REFUSAL_BYTES, S3Bucket

ASKED = 128 * 1024
ENDLESS = 1024 * 1024 * 1024
SOCKETS = 32 * 1024 * 1024
"""More than the buffers of both ends take before a reader that has gone away is noticed."""


@contextmanager
def answering(head: str, body: int) -> Iterator[tuple[S3Bucket, Callable[[], int]]]:
    """A bucket whose store sends so many bytes after a head; and how many it has sent, once it is over."""
    sent: list[int] = []

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.recv(65_536)
                    connection.sendall(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode())
                    for begin in range(0, body, 65_536):
                        part = bytes(min(65_536, body - begin))
                        connection.sendall(part)
                        sent.append(len(part))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield S3Bucket("b", endpoint=endpoint, region="us-east-1", seconds=30, anonymous=True), lambda: sum(sent)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.mark.parametrize(
    ("head", "body", "why"),
    [
        (f"200 OK\r\nContent-Length: {ASKED}", ASKED, "range that was asked for"),
        (f"206 Partial Content\r\nContent-Length: {ASKED + 1}", ASKED + 1, "range that was asked for"),
        (f"200 OK\r\nContent-Length: {ENDLESS}", ENDLESS, "range that was asked for"),
        (f"206 Partial Content\r\nContent-Length: {ASKED}", ASKED - 1, "does not answer"),
    ],
    ids=["the whole object", "one byte more", "a gibibyte", "cut"],
)
def test_another_answer_than_the_range_is_refused_and_not_read_to_its_end(head: str, body: int, why: str) -> None:
    with answering(head, body) as (bucket, sent):
        with pytest.raises(GenericError, match=why):
            bucket.get("k", options={"range": (0, ASKED)})
        assert sent() < SOCKETS


def test_the_text_of_a_refusal_may_be_longer_than_the_range() -> None:
    refusing = answering(f"404 Not Found\r\nContent-Length: {REFUSAL_BYTES}", REFUSAL_BYTES)
    with refusing as (bucket, _), pytest.raises(FileNotFoundError):
        bucket.get("k", options={"range": (0, 4)})
