"""The client of S3 before a store whose answers HTTP or S3 does not allow."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

import pytest
from obstore.exceptions import GenericError

from kfm_dagster.storage.s3 import HEADER_CHARS, LARGEST_SIZE, NO_TIME, REFUSAL_BYTES, OddAnswerError, S3Bucket

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
                    connection.sendall(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
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


def test_another_answer_than_the_range_is_refused_and_not_read_to_its_end() -> None:
    for what, (head, body, why) in {
        "the whole object": (f"200 OK\r\nContent-Length: {ASKED}", ASKED, "another range"),
        "no range named": (f"206 Partial Content\r\nContent-Length: {ASKED}", ASKED, "another range"),
        "one byte more": (f"206 Partial Content\r\nContent-Length: {ASKED + 1}", ASKED + 1, "more bytes"),
        "a gibibyte": (f"200 OK\r\nContent-Length: {ENDLESS}", ENDLESS, "more bytes"),
        "cut": (f"206 Partial Content\r\nContent-Length: {ASKED}", ASKED - 1, "does not answer"),
    }.items():
        with answering(head, body) as (bucket, sent):
            with pytest.raises(GenericError, match=why):
                bucket.get("k", options={"range": (0, ASKED)})
            assert sent() < SOCKETS, what


DATED = "Last-Modified: Wed, 03 Dec 2025 00:04:20 {zone}"


@pytest.mark.clause("SEC-09")
def test_a_header_that_cannot_be_is_an_error_of_the_store() -> None:
    for header in (
        'ETag: "\xe9"',
        f"ETag: {'e' * (HEADER_CHARS + 1)}",
        "Content-Type: text/\xff",
        "Last-Modified: yesterday",
        "Last-Modified: Wed, 03 Dec 99999 00:04:20 GMT",
        "Last-Modified: Wed, 31 Dec 1969 23:59:59 GMT",
        "Last-Modified: Fri, 31 Dec 9999 23:59:59 -0100",
        f"Content-Length: {LARGEST_SIZE + 1}",
        "Transfer-Encoding: chunked",
    ):
        length = "" if header.startswith(("Content-Length", "Transfer")) else "\r\nContent-Length: 7"
        with answering(f"200 OK\r\n{header}{length}", 0) as (bucket, _), pytest.raises(GenericError):
            bucket.get("k", options={"head": True})


@pytest.mark.clause("SEC-09")
def test_the_size_of_an_object_is_in_the_range_that_the_store_names() -> None:
    for content_range, size in (
        (f"bytes 0-6/{LARGEST_SIZE}", LARGEST_SIZE),
        (f"bytes 0-6/{LARGEST_SIZE + 1}", None),
        (f"bytes 0-6/{10**30}", None),
        ("bytes 0-6/" + "9" * 1000, None),
        ("bytes 0-6/*", None),
        ("bytes 0-6/6", None),
        ("bytes 1-7/8", None),
        ("bytes 0-5/7", None),
        ("bytes 0-6/\u0667".encode().decode("latin-1"), None),
    ):
        head = f"206 Partial Content\r\nContent-Length: 7\r\nContent-Range: {content_range}"
        with answering(head, 7) as (bucket, _):
            if size is None:
                with pytest.raises(OddAnswerError):
                    bucket.get("k", options={"range": (0, 7)})
            else:
                assert bucket.get("k", options={"range": (0, 7)}).meta["size"] == size


def test_times_are_utc() -> None:
    for zone, hour in (("GMT", 0), ("-0000", 0), ("+0100", 23)):
        with answering(f"200 OK\r\nContent-Length: 7\r\n{DATED.format(zone=zone)}", 0) as (bucket, _):
            time = bucket.get("k", options={"head": True}).meta["last_modified"]
        assert (time.tzinfo, time.hour) == (NO_TIME.tzinfo, hour)


PAGE = "<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{inside}</ListBucketResult>"
ENTRY = "<Contents><Key>k</Key><Size>{size}</Size><LastModified>{time}</LastModified></Contents>"


@pytest.mark.clause("SEC-09")
def test_a_listing_that_cannot_be_is_an_error_of_the_store() -> None:
    for page in (
        "no XML",
        "<?xml version='1.0' encoding='none'?><a/>",
        PAGE.format(inside="<Contents/>"),
        PAGE.format(inside=ENTRY.format(size=-1, time="2025-12-03T00:00:00Z")),
        PAGE.format(inside=ENTRY.format(size=10**30, time="2025-12-03T00:00:00Z")),
        PAGE.format(inside=ENTRY.format(size=1, time="yesterday")),
        PAGE.format(inside="<NextContinuationToken>again</NextContinuationToken>"),
    ):
        answer = answering(f"200 OK\r\nContent-Length: {len(page)}\r\n\r\n{page}", 0)
        with answer as (bucket, _), pytest.raises(OddAnswerError):
            list(islice(bucket.list("folder"), 3))


def test_the_text_of_a_refusal_may_be_longer_than_the_range() -> None:
    refusing = answering(f"404 Not Found\r\nContent-Length: {REFUSAL_BYTES}", REFUSAL_BYTES)
    with refusing as (bucket, _), pytest.raises(FileNotFoundError):
        bucket.get("k", options={"range": (0, 4)})
