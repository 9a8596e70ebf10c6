"""A bucket of S3, or of a compatible server, by requests that follow no redirects.

obstore's client always follows redirects, and sends the session token (`x-amz-security-token`) to any host that a
redirect names. So this client uses pyreqwest, with credentials from botocore, and treats a redirect as an error.
Belongs here: the few requests that the package makes, with the names, answers and errors of obstore's stores, so that
both stores are interchangeable. Does not belong here: signing (`signature.py`), which objects to read (`objects.py`).
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from xml.etree import ElementTree as ET

from botocore.exceptions import BotoCoreError
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import ObjectStore
from pyreqwest.client import SyncClient, SyncClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.response import SyncResponse

from kfm_dagster.storage.signature import signed_headers

MAX_RETRIES = 2
"""Retries of a request without an answer, or with a status of `_LATER`; afterwards the ledger retries."""
REFUSAL_BYTES = 64 * 1024
"""Limit of an answer if the requested range has fewer bytes, because an error's text may be longer than the range."""
LISTING_BYTES = 16 * 1024 * 1024
"""Limit of a listing's page: 1,000 keys of 1,024 bytes, three times as long if percent-encoded, and XML tags."""
NO_TIME = datetime.fromtimestamp(0, UTC)
"""Placeholder for the time of an object if the store reports none."""
HEADER_CHARS = 1024
"""Limit of a header; the headers of S3 are shorter than 100."""
LARGEST_SIZE = 2**63 - 1
"""Largest size of an object, in bytes, because the ledger stores sizes in 64 bits. S3's largest object has 50 TB."""
PAGE = 1000
"""Keys of a listing page (S3 API reference, ListObjectsV2)."""
Page = list[Any]
Listing = dict[str, list[Any]]
CONNECTIONS = 512
"""Limit of idle connections."""
NO_BUCKET = "NoSuchBucket"
"""S3's code for a missing bucket (S3 API reference, Error responses)."""
_NO_VERSION = f'"{"0" * 32}"'
"""An ETag that no object has, because no content with this MD5 is known."""
REGION = re.compile(r"[a-z0-9-]{1,32}")
"""Form of a region's name, which becomes a part of a host's name."""
_LATER = {429, 500, 502, 503, 504}
_SIZE = re.compile(r"[0-9]{1,19}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class OddAnswerError(GenericError):
    """An answer that is impossible or forbidden by HTTP or S3; the text does not quote it."""

    next_step: str | None = None


class RedirectRefusedError(OddAnswerError):
    """The store answers with a redirect; nothing was sent to its target."""

    def __init__(self, *, host: str, status: int, location: str | None, region: re.Match[str] | None) -> None:
        where = f" to {_host(location) or host}" if location else ""
        super().__init__(f"{host} answers {status}, a redirect{where}, which is not followed")
        self.next_step = (
            f"the bucket is in region {region[0]}: correct the contract's storage.region (own buckets: AWS_REGION)"
            if region
            else "correct AWS_ENDPOINT_URL, or ask the endpoint's operator"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """The answer to `get`: the object's metadata and, except for a HEAD, its bytes."""

    meta: Mapping[str, Any]
    attributes: Mapping[str, str]
    content: bytes = field(default=b"", repr=False)

    def bytes(self) -> bytes:
        """Return the fetched bytes."""
        return self.content


class S3Bucket:
    """The objects of a bucket below a prefix. Thread-safe; a fork opens its own connections."""

    def __init__(
        self, bucket: str, *, endpoint: str, region: str, seconds: float, prefix: str = "", anonymous: bool = False
    ) -> None:
        self._bucket = bucket
        self._endpoint = endpoint.rstrip("/")
        self._host = _host(endpoint)
        self._region = region
        self._seconds = seconds
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._anonymous = anonymous
        self._connected: tuple[int, SyncClient] | None = None

    def get(self, path: str, *, options: Mapping[str, Any] | None = None) -> Fetched:
        """Get an object; with `head` only its metadata, with `range` the bytes [start, end).

        If `if_match` (an ETag in quotes) is set, raises PreconditionError for another version.
        """
        options = options or {}
        headers = {"If-Match": options["if_match"]} if options.get("if_match") else {}
        if "range" in options:
            start, end = options["range"]
            headers["Range"] = f"bytes={start}-{end - 1}"
        method = "HEAD" if options.get("head") else "GET"
        limit = max(end - start, REFUSAL_BYTES) if "range" in options else math.inf
        answer, content = self._request(method, path, headers=headers, limit=limit)
        if options.get("head"):
            size = self._size(self._header(answer, "Content-Length"))
        elif "range" in options:
            size = self._size_by_range(answer, content, start=start, end=end)
        else:
            size = len(content)
        modified, media_type = self._header(answer, "Last-Modified"), self._header(answer, "Content-Type")
        return Fetched(
            meta={
                "path": path,
                "size": size,
                "e_tag": self._header(answer, "ETag"),
                "last_modified": NO_TIME if modified is None else self._time(parsedate_to_datetime, modified),
            },
            attributes={} if media_type is None else {"Content-Type": media_type},
            content=content,
        )

    def put(
        self,
        path: str,
        content: bytes,
        *,
        mode: Literal["create", "overwrite"] = "overwrite",
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Put an object; with `create`, raise AlreadyExistsError if it exists."""
        headers = {**(attributes or {}), **({"If-None-Match": "*"} if mode == "create" else {})}
        self._request("PUT", path, headers=headers, body=content)

    def try_put(self, path: str) -> None:
        """Check whether an object could be put, by a put on a condition that never holds.

        Raises as `put` if the put is not allowed. A store that ignores conditions puts an empty object.
        """
        try:
            self._request("PUT", path, headers={"If-Match": _NO_VERSION})
        except AlreadyExistsError:
            return
        except FileNotFoundError as error:
            if NO_BUCKET in str(error):
                raise

    def delete(self, path: str) -> None:
        """Delete an object; a missing object is not an error."""
        self._request("DELETE", path)

    def list(self, prefix: str = "", *, offset: str | None = None, chunk_size: int = PAGE) -> Iterator[Page]:
        """List the objects below a folder, page by page in the order of keys, after `offset`."""
        for page in self._pages(prefix, {"max-keys": str(chunk_size)}, offset=offset):
            yield [self._listed(entry) for entry in page.iter(f"{_XML}Contents")]

    def list_with_delimiter(self, prefix: str = "") -> Listing:
        """List a folder's own objects and folders, without deeper levels."""
        objects: list[Any] = []
        folders: list[str] = []
        for page in self._pages(prefix, {"delimiter": "/"}):
            objects += [self._listed(entry) for entry in page.iter(f"{_XML}Contents")]
            folders += [
                unquote_plus(self._text(entry, "Prefix")).removeprefix(self._root).rstrip("/")
                for entry in page.iter(f"{_XML}CommonPrefixes")
            ]
        return {"objects": objects, "common_prefixes": folders}

    def _pages(self, prefix: str, query: Mapping[str, str], *, offset: str | None = None) -> Iterator[ET.Element]:
        folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        parameters = {"list-type": "2", "encoding-type": "url", "prefix": self._root + folder, **query}
        if offset is not None:
            parameters["start-after"] = self._root + offset
        while True:
            _, content = self._request("GET", None, query=parameters, limit=LISTING_BYTES)
            try:
                page = ET.fromstring(content)  # noqa: S314 - our own endpoint's; expat resolves no external entity
            except (ET.ParseError, LookupError, ValueError):  # the last two for an unknown encoding
                raise self._odd("no listing") from None
            yield page
            following = page.findtext(f"{_XML}NextContinuationToken")
            if following is None:
                return
            if following == parameters.get("continuation-token"):
                raise self._odd("a listing that does not end")
            parameters["continuation-token"] = following

    def _listed(self, entry: ET.Element) -> dict[str, Any]:
        return {
            "path": unquote_plus(self._text(entry, "Key")).removeprefix(self._root),
            "size": self._size(self._text(entry, "Size")),
            "e_tag": entry.findtext(f"{_XML}ETag"),
            "last_modified": self._time(datetime.fromisoformat, self._text(entry, "LastModified")),
        }

    def _text(self, entry: ET.Element, name: str) -> str:
        text = entry.findtext(_XML + name)
        if text is None:
            raise self._odd(f"a listing without {name}")
        return text

    def _header(self, answer: SyncResponse, name: str) -> str | None:
        """Return a header of visible ASCII characters, or None if the answer lacks the header."""
        try:
            value = answer.headers.get(name)
        except ValueError:
            raise self._odd(f"no valid {name}") from None
        if value is not None and len(value) > HEADER_CHARS:
            raise self._odd(f"no valid {name}")
        return value

    def _size(self, text: str | None) -> int:
        if text is None or not _SIZE.fullmatch(text) or int(text) > LARGEST_SIZE:
            raise self._odd("no valid size")
        return int(text)

    def _size_by_range(self, answer: SyncResponse, content: bytes, *, start: int, end: int) -> int:
        """Return the object's size; refuse an answer that has other bytes than the requested range."""
        parts = _CONTENT_RANGE.fullmatch(self._header(answer, "Content-Range") or "")
        if answer.status != 206 or parts is None:
            raise self._odd("another range than was requested")
        size = self._size(parts[3])
        stop = min(end, size)
        if (int(parts[1]), int(parts[2]) + 1, len(content)) != (start, stop, stop - start):
            raise self._odd("another range than was requested")
        return size

    def _time(self, parse: Callable[[str], datetime], text: str) -> datetime:
        """Return a time in UTC. Refuse times before 1970; no zone means UTC (RFC 5322, 3.3: -0000)."""
        try:
            time = parse(text)
            time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError):
            raise self._odd("no valid time") from None
        if time < NO_TIME:
            raise self._odd("no valid time")
        return time

    def _odd(self, what: str) -> OddAnswerError:
        return OddAnswerError(f"{self._host} answers with {what}")

    def _request(
        self,
        method: str,
        path: str | None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit: float = math.inf,
    ) -> tuple[SyncResponse, bytes]:
        """Make a request, with retries, and return a successful answer of at most `limit` bytes."""
        url = f"{self._endpoint}/{self._bucket}"
        if path is not None:
            url += "/" + quote(self._root + path, safe="/~")
        if query:
            url += "?" + urlencode(query, quote_via=quote)
        started = time.monotonic()
        for attempt in range(MAX_RETRIES + 1):
            last = attempt == MAX_RETRIES or time.monotonic() - started > 2 * self._seconds
            try:
                answer, content = self._send(method, url, dict(headers or {}), body, limit)
            except (PyreqwestError, OSError) as error:
                if last:
                    raise GenericError(f"{self._host} does not answer ({type(error).__name__})") from None
            else:
                if answer.status not in _LATER or last:
                    self._refuse(method, answer, path, content)
                    return answer, content
            time.sleep(0.1 * 2**attempt * (1 + random.random()))  # noqa: S311 - so that workers do not retry together
        raise AssertionError  # the last attempt has returned or raised

    def _send(
        self, method: str, url: str, headers: dict[str, str], body: bytes, limit: float
    ) -> tuple[SyncResponse, bytes]:
        if not self._anonymous:
            now = datetime.now(UTC)
            headers = signed_headers(self._credentials, self._region, method, url, headers, body, now)
        request = self._client.request(method, url).headers(headers)
        if method == "PUT":
            request = request.body_bytes(body)
        if "Range" in headers:
            # Only ranges have this timeout, because a large whole object may take longer.
            request = request.timeout(timedelta(seconds=self._seconds))
        with request.build_streamed() as answer:
            return answer, self._content(answer, limit)

    def _content(self, answer: SyncResponse, most: float) -> bytes:
        """Return an answer's bytes. Raises OddAnswerError for more than `most`."""
        parts: list[bytes] = []
        for chunk in iter(answer.body_reader.read_chunk, None):
            # Copied, because a chunk keeps the connection's read buffer of up to 400 KB alive: without copies, a dozen
            # chunks, 128 KiB together, took 3 MB for each reading thread.
            parts.append(bytes(chunk))
            most -= len(chunk)
            if most < 0:
                raise self._odd("more bytes than were requested")
        return b"".join(parts)

    def _refuse(self, method: str, answer: SyncResponse, path: str | None, content: bytes) -> None:
        """Raise obstore's error for an unsuccessful answer."""
        status, name = answer.status, path or self._bucket
        if 200 <= status < 300:
            return
        if 300 <= status < 400:
            raise RedirectRefusedError(
                host=self._host,
                status=status,
                location=self._header(answer, "Location"),
                region=REGION.fullmatch(self._header(answer, "x-amz-bucket-region") or ""),
            )
        if status == 404 and (path is None or NO_BUCKET.encode() in content):
            raise FileNotFoundError(f"{NO_BUCKET}: {self._bucket} does not exist")
        if status == 404:
            raise FileNotFoundError(f"{name} does not exist")  # as obstore does
        if status == 412 and method == "GET":
            raise PreconditionError(f"{name} has another version now")
        if status in {409, 412}:
            raise AlreadyExistsError(f"{name} exists already")
        if status == 401:
            raise UnauthenticatedError(f"{self._host} rejects the credentials")
        if status == 403:
            raise PermissionDeniedError(f"{self._host} refuses {name}")
        raise GenericError(f"{self._host} answers with status code: {status}")

    @cached_property
    def _provider(self) -> Any:
        from botocore.session import Session  # noqa: PLC0415 - half a second of CPU, which only signing needs

        return Session().get_credentials()

    @property
    def _credentials(self) -> Any:
        try:
            credentials = None if self._provider is None else self._provider.get_frozen_credentials()
        except BotoCoreError as error:
            raise UnauthenticatedError(f"no AWS credentials ({type(error).__name__})") from None
        if credentials is None:
            raise UnauthenticatedError("no AWS credentials; public buckets are read with KFM_ANONYMOUS=true")
        return credentials

    @property
    def _client(self) -> SyncClient:
        if self._connected is None or self._connected[0] != os.getpid():
            self._connected = (os.getpid(), _client(self._seconds))
        return self._connected[1]


def reason(error: Exception) -> str:
    """Return why a store did not answer, without the (perhaps signed) URLs of obstore's texts."""
    return str(error) if isinstance(error, OddAnswerError) else type(error).__name__


Store = ObjectStore | S3Bucket
"""A store of objects: obstore's folders, memory, GCS and Azure, or a bucket of S3."""


def _client(seconds: float) -> SyncClient:
    """Return a client with the environment's proxy and certificate authorities."""
    off = False
    builder = (
        SyncClientBuilder()
        .follow_redirects(off)
        # An object's bytes are returned as stored, whatever their encoding.
        .gzip(off)
        .brotli(off)
        .deflate(off)
        .zstd(off)
        .connect_timeout(timedelta(seconds=min(5.0, seconds)))
        .read_timeout(timedelta(seconds=seconds))
        .pool_max_idle_per_host(CONNECTIONS)
    )
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        builder = builder.add_root_certificate_pem(Path(bundle).read_bytes())
    return builder.build()


def _host(url: str) -> str:
    """Return host and port of a foreign URL, in bounded and printable form."""
    try:
        return ascii(urlsplit(url).netloc.rpartition("@")[2][:200]).strip("'")
    except ValueError:
        return "an invalid address"
