"""Buckets of an S3 server for tests of virtual stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "virtual-zarr.md").read_text(encoding="utf-8")
Opened = Callable[..., Any]


def client(server: str) -> Any:
    keys = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "x")
    return boto3.client("s3", endpoint_url=server, region_name="us-east-1", **keys)


def put(server: str, bucket: str, key: str, content: bytes) -> None:
    s3 = client(server)
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key=key, Body=content, ACL="public-read")
