"""ListObjectsV2 over a folder: pages of keys in order, and folders by a delimiter.

Belongs here: the parameters and the XML of this call (S3 API reference). Does not belong here: all other calls of the
store (`store_server.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
MOST_KEYS = 1000


def listing(root: Path, bucket: str, query: Mapping[str, str], etag_of: Callable[[Path], str]) -> bytes:
    """Return one page as XML; the token of a page is the last entry of the previous page."""
    base = root / bucket
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    most = min(int(query.get("max-keys", MOST_KEYS)), MOST_KEYS)
    names = _entries(base, prefix, deep=delimiter != "/")
    names_after = sorted(name for name in names if name.startswith(prefix) and name > after)
    page = names_after[:most]

    def text(name: str) -> str:
        return quote(name, safe="/") if query.get("encoding-type") == "url" else escape(name)

    parts = [
        f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="{NAMESPACE}"><Name>{escape(bucket)}</Name>',
        f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(len(names_after) > most).lower()}</IsTruncated>",
    ]
    if len(names_after) > most:
        parts.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
    for name in page:
        if name.endswith("/"):
            parts.append(f"<CommonPrefixes><Prefix>{text(name)}</Prefix></CommonPrefixes>")
            continue
        status = (base / name).stat()
        when = f"{datetime.fromtimestamp(int(status.st_mtime), UTC):%Y-%m-%dT%H:%M:%S}.000Z"
        parts.append(
            f"<Contents><Key>{text(name)}</Key><LastModified>{when}</LastModified>"
            f'<ETag>"{etag_of(base / name)}"</ETag><Size>{status.st_size}</Size></Contents>'
        )
    return ("".join(parts) + "</ListBucketResult>").encode()


def _entries(base: Path, prefix: str, *, deep: bool) -> Iterator[str]:
    """Yield the keys in the prefix's folder; of subfolders all keys (`deep`), or only the names."""
    folder = base / prefix.rpartition("/")[0]
    for where, folders, files in os.walk(folder):
        within = Path(where).relative_to(base).as_posix()
        start = "" if within == "." else f"{within}/"
        yield from (start + name for name in files)
        if not deep:
            yield from (f"{start}{name}/" for name in folders)
            return
