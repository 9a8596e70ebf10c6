"""A store server: the product's S3 calls over ROOT/bucket/key, answered after a delay.

    python -m benchmarks.store_server ROOT --latency-ms 50 [--odd-every 100]

GET (whole, by Range, with If-Match), HEAD, PUT (with If-None-Match: *), DELETE and ListObjectsV2, path-style, on
loopback; signatures are not checked. The server prints its port, and ends with its parent. `GET /__counts` returns the
counts since the last request of this kind. The delay begins when a request is complete, and delays run concurrently, as
with a distant store; bandwidth is unlimited. With `--odd-every N`, one in N answers about objects is an answer that S3
never gives.
Does not belong here: starting the server (`store.py`), and the objects in the folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections import Counter
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import parse_qsl, unquote

import click
import orjson
import uvloop  # a dependency of dagster-webserver

from benchmarks.store_listing import listing
from kfm_dagster.demo.child_server import end_with_parent

COUNTS = "/__counts"
WHOLE_BYTES = 8 * 1024 * 1024
"""Up to this size an ETag has the form of an MD5; a larger upload has parts (AWS CLI `multipart_threshold`)."""
_ETAG = "user.etag"
_END = b"\r\n\r\n"
_TYPE = ("Content-Type", "binary/octet-stream")


class Answer(NamedTuple):
    """Status, headers without Content-Length, body; `length` is the Content-Length for HEAD."""

    status: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    length: int | None = None


NO_KEY = Answer("404 Not Found", body=b"<Error><Code>NoSuchKey</Code></Error>")
BAD_REQUEST = Answer("400 Bad Request", body=b"<Error><Code>InvalidRequest</Code></Error>")
NOT_DONE_HERE = Answer("501 Not Implemented", body=b"<Error><Code>NotImplemented</Code></Error>")
ODDITIES = (
    Answer("206 Partial Content", (("Content-Range", f"bytes 0-6/{10**30}"),), b"odd one"),
    Answer("200 OK", (("Last-Modified", "Wed, 03 Dec 99999 00:04:20 GMT"),), b"odd one"),
    Answer("206 Partial Content", (("ETag", '"\xff"'), ("Content-Range", "bytes 0-6/7")), b"odd one"),
    Answer("416 Range Not Satisfiable"),
    Answer("299 Odd", (("Content-Type", "text/\xff"),)),
)
CHANGED = Answer("412 Precondition Failed", body=b"<Error><Code>PreconditionFailed</Code></Error>")


def etag_of(path: Path) -> str:
    """Return a file's ETag without quotes, in the form of an MD5 or, if large, of parts.

    A large object's digest is that of name and size, because it is mostly holes, which should not be read.
    """
    status = path.stat()
    return _etag(str(path), status.st_size, status.st_mtime_ns)


def keep_etag(path: Path) -> str:
    """Store a file's ETag with the file, so that servers need not read the file; return the ETag."""
    etag = etag_of(path)
    # On a file system without such attributes the server reads the file.
    with suppress(OSError):
        os.setxattr(path, _ETAG, etag.encode())
    return etag


class Store:
    """The objects below a folder, and the counts of requests. Used by one thread."""

    def __init__(self, root: Path, *, odd_every: int = 0) -> None:
        self._root = str(root)
        self._odd_every = odd_every
        self._answers = 0
        self._folders: set[str] = set()
        self._at_once = 0
        self.counts: Counter[str] = Counter()

    def began(self) -> None:
        """Count a received request."""
        self._at_once += 1
        self.counts["at_once"] = max(self.counts["at_once"], self._at_once)

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """Execute a request, and add it to the counts: requests by kind, sent and received bytes."""
        self._at_once -= 1
        path, _, query = target.partition("?")
        name = unquote(path).strip("/")
        kind = "LIST" if method == "GET" and "list-type=2" in query else method
        self.counts[kind] += 1
        self.counts["bytes_received"] += len(body)
        if ".." in name.split("/") or not name:
            answer = BAD_REQUEST
        elif kind == "LIST":
            page = listing(Path(self._root), name, dict(parse_qsl(query)), etag_of)
            answer = Answer("200 OK", (("Content-Type", "application/xml"),), page)
        else:
            answer = self._of_object(method, f"{self._root}/{name}", headers, body)
        self.counts["bytes"] += len(answer.body)
        return answer

    def _of_object(self, method: str, file: str, headers: dict[str, str], body: bytes) -> Answer:
        match method:
            case "GET" | "HEAD":
                self._answers += 1
                if self._odd_every and self._answers % self._odd_every == 0:
                    self.counts["odd"] += 1
                    return ODDITIES[self._answers // self._odd_every % len(ODDITIES)]
                return self._get(file, headers, whole=method == "GET")
            case "PUT":
                return self._put(file, headers, body)
            case "DELETE":
                Path(file).unlink(missing_ok=True)
                return Answer("204 No Content")
            case _:
                return NOT_DONE_HERE

    def _get(self, file: str, headers: dict[str, str], *, whole: bool) -> Answer:
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return NO_KEY
        try:
            status = os.fstat(descriptor)
            etag = f'"{_etag(file, status.st_size, status.st_mtime_ns)}"'
            headers_sent = (
                _TYPE,
                ("ETag", etag),
                ("Last-Modified", _date(int(status.st_mtime))),
                ("Accept-Ranges", "bytes"),
            )
            if headers.get("if-match", etag) not in {etag, "*"}:
                return CHANGED
            if not whole:
                return Answer("200 OK", headers_sent, length=status.st_size)
            return _content(descriptor, status.st_size, headers_sent, headers.get("range"))
        except IsADirectoryError:
            return NO_KEY
        finally:
            os.close(descriptor)

    def _put(self, file: str, headers: dict[str, str], body: bytes) -> Answer:
        folder = os.path.dirname(file)  # noqa: PTH120 - a Path for each request is a tenth of its cost
        if folder not in self._folders:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._folders.add(folder)
        # One thread, so no request reads half an object.
        mode = "xb" if headers.get("if-none-match") == "*" else "wb"
        try:
            with open(file, mode) as opened:  # noqa: PTH123 - as above
                opened.write(body)
        except FileExistsError:
            return CHANGED
        return Answer("200 OK", (("ETag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'),))


class Connection(asyncio.Protocol):
    """One connection: its requests are answered one after the other, each after the latency."""

    def __init__(self, store: Store, latency_seconds: float) -> None:
        self._store = store
        self._latency = latency_seconds
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._waits = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own, which derive from no class of asyncio

    def data_received(self, data: bytes) -> None:
        """Store received bytes; process the next request once it is complete."""
        self._received += data
        if not self._waits:
            self._next()

    def _next(self) -> None:
        end = self._received.find(_END)
        if end < 0:
            return
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        stop = end + len(_END) + int(headers.get("content-length", 0))
        if len(self._received) < stop:
            return
        body = bytes(self._received[end + len(_END) : stop])
        del self._received[:stop]
        method, target, _ = first.split(" ", 2)
        if target == COUNTS:
            counts, self._store.counts = dict(self._store.counts), Counter()
            self._send(method, Answer("200 OK", body=orjson.dumps(counts)))
            return
        self._waits = True
        self._store.began()
        if self._latency:
            self._loop.call_later(self._latency, self._answer, method, target, headers, body)
        else:
            self._answer(method, target, headers, body)

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self._waits = False
        self._send(method, self._store.answer(method, target, headers, body))
        self._next()

    def _send(self, method: str, answer: Answer) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        length = len(answer.body) if answer.length is None else answer.length
        date = f"Date: {formatdate(usegmt=True)}"
        head = [f"HTTP/1.1 {answer.status}", date, *(f"{name}: {value}" for name, value in answer.headers)]
        head.append(f"Content-Length: {length}\r\n\r\n")
        self._transport.write("\r\n".join(head).encode("latin-1") + (b"" if method == "HEAD" else answer.body))


def _content(descriptor: int, size: int, headers: tuple[tuple[str, str], ...], byte_range: str | None) -> Answer:
    """Return an object's bytes, or the bytes of a range."""
    if byte_range is None:
        return Answer("200 OK", headers, os.pread(descriptor, size, 0))
    first, stop = _range(byte_range, size)
    if first >= size:
        return Answer("416 Range Not Satisfiable", (("Content-Range", f"bytes */{size}"),))
    span = ("Content-Range", f"bytes {first}-{stop - 1}/{size}")
    return Answer("206 Partial Content", (*headers, span), os.pread(descriptor, stop - first, first))


def _range(byte_range: str, size: int) -> tuple[int, int]:
    """Return the bytes [first, stop) of a single range (RFC 9110, 14.1.2)."""
    first, _, last = byte_range.removeprefix("bytes=").partition("-")
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size


@lru_cache(maxsize=200_000)
def _etag(file: str, size: int, _changed_ns: int) -> str:
    if size > WHOLE_BYTES:
        digest = hashlib.md5(f"{Path(file).name} {size}".encode(), usedforsecurity=False).hexdigest()
        return f"{digest}-{-(-size // WHOLE_BYTES)}"
    try:
        return os.getxattr(file, _ETAG).decode()
    except OSError:
        return hashlib.md5(Path(file).read_bytes(), usedforsecurity=False).hexdigest()


@lru_cache(maxsize=1000)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


async def _serve(root: Path, latency_seconds: float, odd_every: int) -> None:
    store = Store(root, odd_every=odd_every)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(store, latency_seconds), "127.0.0.1", 0, backlog=1000)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--latency-ms", default=0.0, type=click.FloatRange(0, 60_000), help="Delay of each answer.")
@click.option("--odd-every", default=0, type=click.IntRange(0), help="Make every N-th answer odd; 0: none.")
def main(*, root: Path, latency_ms: float, odd_every: int) -> None:
    """Serve ROOT/bucket/key on a loopback port, which is printed, until standard input ends."""
    end_with_parent()
    uvloop.run(_serve(root.absolute(), latency_ms / 1000, odd_every))


if __name__ == "__main__":
    main()
