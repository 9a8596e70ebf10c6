"""Object stores: which objects may be read, where they are, and the objects of a day.

Belongs here: the check before every read (SEC-01), connections to S3, GCS, Azure or a folder in their place, listings,
and the store of our own artifacts. Does not belong here: reading itself (`object_handle.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, LocalStore

from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader, KeyKind, is_safe_key
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ConfigurationError, StoreAccessError
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.settings import LOOPBACK_HOSTS
from kfm_dagster.storage.object_handle import (
    FolderObject,
    ObjectHandle,
    ObjectReadError,
    RemoteObject,
    UndeclaredObjectError,
    file_etag,
    is_inside,
    request,
)
from kfm_dagster.storage.private import private_folder
from kfm_dagster.storage.s3 import REGION, S3Bucket, Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

REQUEST_SECONDS = 15.0
"""Timeout of a request of header size; with two retries a dead store is noticed within 45 s."""
_CLIENT: ClientConfig = {"timeout": timedelta(seconds=REQUEST_SECONDS), "connect_timeout": timedelta(seconds=5)}
_RETRIES: RetryConfig = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=2 * REQUEST_SECONDS),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""At most two retries, within twice REQUEST_SECONDS; afterwards the ledger retries the unit."""

SIDECAR_BYTES = 256 * 1024
"""First read of a sidecar: every `.idx` of HRRR, GFS, GEFS and NBM is smaller, so one request fetches it whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedObject:
    """A listed data object; size in bytes, ETag without quotes, last_modified in UTC."""

    uri: str
    size: int
    etag: str | None
    last_modified: datetime


class ObjectStores:
    """Opens only objects that contracts declare. Thread-safe; a connection pool per bucket."""

    def __init__(self, *, object_root: Path | None = None, anonymous: bool = False) -> None:
        # Resolved once, so that resolving an object's path has fewer links to follow.
        self._root = None if object_root is None else Path(os.path.realpath(object_root))
        self._anonymous = anonymous
        self._lock = threading.Lock()
        self._stores: dict[tuple[str, str], Store] = {}
        self._grammars: dict[str, KeyGrammarReader] = {}

    @property
    def remote(self) -> bool:
        """Whether each read is a request over a network."""
        return self._root is None

    def open(
        self,
        contract: DatasetContract,
        uri: str,
        *,
        size: int | None = None,
        etag: str | None = None,
        first: bytes = b"",
    ) -> ObjectHandle:
        """Open a data object or sidecar of the contract, without a request.

        If `etag` (without quotes) is set, only that version of a bucket's object is read, else only the version of the
        first answer. A known `size` and the `first` bytes of that version save later requests. With an object root,
        all three are ignored, because files are read in place.

        Raises UndeclaredObjectError for any other bucket or key, and ConfigurationError for an impossible endpoint.
        """
        bucket, key = self._declared(contract, uri)
        if self._root is not None:
            return FolderObject(self._root, uri=uri, bucket=bucket, key=key)
        return RemoteObject(self._store(contract, bucket), uri=uri, key=key, size=size, etag=etag, first=first)

    def open_sidecar(self, contract: DatasetContract, uri: str, suffix: str) -> ObjectHandle | None:
        """Open the sidecar `uri + suffix` and fetch its beginning in one request; None if missing.

        Raises ObjectReadError when the store does not report whether the sidecar exists.
        """
        handle = self.open(contract, uri + suffix)
        try:
            handle.probe(SIDECAR_BYTES)
        except ObjectReadError as error:
            if error.code is IntegrityIssue.MISSING_OBJECT:
                return None
            raise
        return handle

    def list_day(
        self, contract: DatasetContract, day: date, *, left_out: Callable[[str, KeyKind], None] = lambda *_: None
    ) -> Iterator[ListedObject]:
        """List the data objects whose own time starts on a UTC day, page by page.

        `left_out` is called with each key that gives no unit on any day, and its kind: ignored, foreign, or a data key
        of an impossible time.

        Raises ObjectReadError if a store does not answer, and StoreAccessError, after listing the other buckets, if a
        bucket is missing or refuses the listing.
        """
        refused: list[str] = []
        for bucket in contract.storage.buckets:
            try:
                yield from self._listed_day(contract, bucket, day, left_out)
            except ObjectReadError as error:
                if error.code not in {IntegrityIssue.MISSING_OBJECT, IntegrityIssue.ACCESS_DENIED}:
                    raise
                refused.append(f"s3://{bucket}")
        if refused:
            raise StoreAccessError(
                f"not every bucket of {contract.id} can be listed",
                observed=f"{', '.join(refused)}: no such bucket, or no access to it",
                expected="a listing of every bucket (the other buckets are processed)",
                next_step="correct the contract's storage.buckets, or the credentials (public buckets: KFM_ANONYMOUS)",
            )

    def _listed_day(
        self, contract: DatasetContract, bucket: str, day: date, left_out: Callable[[str, KeyKind], None]
    ) -> Iterator[ListedObject]:
        grammar = self._grammar(contract)
        for template in grammar.contract.storage.day_prefixes(day):
            for prefix in self._expanded(contract, bucket, template):
                for listed in self._listed(contract, bucket, prefix):
                    key = listed.uri.removeprefix(f"s3://{bucket}/")
                    kind = grammar.kind(key)
                    if kind is KeyKind.DATA and (key_day := _day_of(grammar, listed)) is not None:
                        if key_day == day:
                            yield listed
                    elif kind is not KeyKind.SIDECAR:
                        left_out(key, kind)

    def _expanded(self, contract: DatasetContract, bucket: str, prefix: str) -> list[str]:
        """Expand each `*` of a prefix to the existing folders: MRMS has a folder for each product."""
        above, star, below = prefix.partition("*")
        if not star:
            return [prefix]
        with request(f"s3://{bucket}/{above}", Failpoint.OBJECT_LIST_BEFORE, Failpoint.OBJECT_LIST_AFTER):
            if self._root is not None:
                folders = _folders(self._root / bucket, above)
            else:
                listing = self._store(contract, bucket).list_with_delimiter(above.rstrip("/"))
                folders = [folder.rstrip("/") for folder in listing["common_prefixes"]]
        return [path for folder in sorted(folders) for path in self._expanded(contract, bucket, f"{folder}{below}")]

    def ask(self, contract: DatasetContract, bucket: str) -> None:
        """Check that a bucket can be listed: request one key. Raises the store's errors or OSError.

        An empty listing is not an error, because a day may have no objects yet.
        """
        if self._root is not None:
            if not (self._root / bucket).is_dir():
                raise FileNotFoundError(f"{self._root / bucket} does not exist")
            return
        folder = contract.storage.prefixes[0].rpartition("/")[0]
        next(iter(self._store(contract, bucket).list(prefix=folder, chunk_size=1)), None)

    def endpoint(self, contract: DatasetContract) -> str | None:
        """Return the URL of the contract's first bucket, for an unsigned request, or None.

        None for a folder, and for Azure without an account. Raises ConfigurationError for an impossible endpoint.
        """
        if self._root is not None:
            return None
        bucket = contract.storage.buckets[0]
        match contract.storage.provider:
            case "gcp":
                return f"https://storage.googleapis.com/{bucket}"
            case "azure":
                account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
                return f"https://{account}.blob.core.windows.net/{bucket}" if account else None
            case "aws":
                return f"{_endpoint_of(contract.storage.region)}/{bucket}"

    def _declared(self, contract: DatasetContract, uri: str) -> tuple[str, str]:
        scheme, _, rest = uri.partition("://")
        bucket, _, key = rest.partition("/")
        if scheme != "s3" or bucket not in contract.storage.buckets:
            raise UndeclaredObjectError(uri, f"the contract of {contract.id} does not name this bucket")
        if self._grammar(contract).kind(key) not in {KeyKind.DATA, KeyKind.SIDECAR}:
            raise UndeclaredObjectError(uri, f"the contract of {contract.id} does not name such a key")
        return bucket, key

    def _grammar(self, contract: DatasetContract) -> KeyGrammarReader:
        reader = self._grammars.get(contract.id)
        if reader is None or reader.contract is not contract:
            reader = self._grammars[contract.id] = KeyGrammarReader(contract)
        return reader

    def _store(self, contract: DatasetContract, bucket: str) -> Store:
        name = (contract.storage.provider, bucket)
        with self._lock:
            if name not in self._stores:
                self._stores[name] = self._connect(contract, bucket)
            return self._stores[name]

    def _connect(self, contract: DatasetContract, bucket: str) -> Store:
        unsigned: dict[str, Any] = {"skip_signature": True} if self._anonymous else {}
        match contract.storage.provider:
            case "gcp":
                return GCSStore(bucket, client_options=_CLIENT, retry_config=_RETRIES, **unsigned)
            case "azure":  # the account comes from AZURE_STORAGE_ACCOUNT_NAME
                return AzureStore(bucket, client_options=_CLIENT, retry_config=_RETRIES, **unsigned)
            case "aws":
                return s3_bucket(bucket, region=contract.storage.region, anonymous=self._anonymous)

    def _listed(self, contract: DatasetContract, bucket: str, prefix: str) -> Iterator[ListedObject]:
        # Stores list only whole path segments; a prefix that ends inside a segment is listed by folder and offset.
        folder, _, partial = prefix.rpartition("/")
        with request(f"s3://{bucket}/{prefix}", Failpoint.OBJECT_LIST_BEFORE, Failpoint.OBJECT_LIST_AFTER):
            if self._root is not None:
                yield from _listed_folder(self._root / bucket, bucket, prefix)
                return
            pages = self._store(contract, bucket).list(
                prefix=folder, offset=prefix if partial else None, chunk_size=1000
            )
            for page in pages:
                for meta in page:
                    key = meta["path"]
                    if not key.startswith(prefix):
                        if partial:  # keys are in order, so no later key starts with the prefix
                            return
                        continue
                    etag = meta["e_tag"]
                    yield ListedObject(
                        uri=f"s3://{bucket}/{key}",
                        size=meta["size"],
                        etag=None if etag is None else etag.strip('"'),
                        last_modified=meta["last_modified"],
                    )


def open_store(location: str) -> Store:
    """Open a folder, created if missing, or s3://bucket/prefix. Raises ConfigurationError."""
    if location.startswith("s3://"):
        bucket, _, prefix = location.removeprefix("s3://").strip("/").partition("/")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return s3_bucket(bucket, region=region, prefix=prefix)
    if "://" in location:
        raise ConfigurationError(
            "KFM_STORAGE_URL has an unknown scheme",
            observed=location.partition("://")[0] + "://",
            expected="a folder or s3://bucket/prefix",
        )
    private_folder(Path(location).absolute())
    return PrivateFolder(Path(location).absolute())


class PrivateFolder(LocalStore):
    """A local folder; folders created in it are for this user alone, as in KFM_HOME."""

    def put(self, path: str, file: Any, **options: Any) -> Any:
        """Put a file; folders are created for this user alone, where obstore would admit all users."""
        private_folder(Path(str(self.prefix), path).parent)
        return super().put(path, file, **options)


def _day_of(grammar: KeyGrammarReader, listed: ListedObject) -> date | None:
    try:
        match = grammar.match(listed.uri.split("/", 3)[3], listed.last_modified)
    except InvalidKeyTimeError:
        return None
    return None if match is None else match.start.date()


def _listed_folder(root: Path, bucket: str, prefix: str) -> Iterator[ListedObject]:
    base = root / prefix.rpartition("/")[0]
    if not is_inside(os.path.realpath(base), str(root)):
        return
    for folder, names, files in os.walk(base):  # follows no symbolic link to a folder
        names.sort()
        for name in sorted(files):
            path = Path(folder, name)
            key = path.relative_to(root).as_posix()
            if key.startswith(prefix) and is_safe_key(key) and path.is_file() and not path.is_symlink():
                status = path.stat()
                yield ListedObject(
                    uri=f"s3://{bucket}/{key}",
                    size=status.st_size,
                    etag=file_etag(path),
                    last_modified=datetime.fromtimestamp(status.st_mtime, UTC),
                )


def _folders(root: Path, above: str) -> list[str]:
    base = root / above
    if not is_inside(os.path.realpath(base), str(root)) or not base.is_dir():
        return []
    return [f"{above}{path.name}" for path in base.iterdir() if path.is_dir() and not path.is_symlink()]


def s3_bucket(bucket: str, *, region: str, prefix: str = "", anonymous: bool = False) -> S3Bucket:
    """Open a bucket at the configured endpoint, else at AWS's. Raises ConfigurationError."""
    endpoint = _endpoint_of(region)
    return S3Bucket(
        bucket, endpoint=endpoint, region=region, seconds=REQUEST_SECONDS, prefix=prefix, anonymous=anonymous
    )


def _endpoint_of(region: str) -> str:
    """Return the configured S3 endpoint, else AWS's for the region. Raises ConfigurationError."""
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        _refuse_plain_http(endpoint)
        return endpoint.rstrip("/")
    # Checked, because the region may come from an Item, and becomes a part of the host's name.
    if not REGION.fullmatch(region):
        raise ConfigurationError("not a region of AWS", observed=repr(region), expected="such as us-east-1")
    return f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def _refuse_plain_http(endpoint: str) -> None:
    """Refuse HTTP without TLS, except on loopback or with AWS_ALLOW_HTTP (obstore's own switch)."""
    parts = urlsplit(endpoint)
    if parts.scheme != "http" or parts.hostname in LOOPBACK_HOSTS:
        return
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() != "true":
        raise ConfigurationError(
            "AWS_ENDPOINT_URL has no TLS",
            observed=f"http://{parts.hostname}",
            expected="https, or a loopback address",
            next_step="use https, or set AWS_ALLOW_HTTP=true",
        )
