"""Dagster's compute logs, what a step prints: in a bucket where KFM_COMPUTE_LOGS_URL names one, else in DAGSTER_HOME.

Several machines need the bucket: the web server shows what a run on another one has printed. Belongs here: that choice.
Does not belong here: the log of events, which is Dagster's storage (`instance_storage.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError
from dagster._config.config_schema import UserConfigSchema
from dagster._core.instance.ref import compute_logs_directory
from dagster._core.storage.compute_log_manager import ComputeLogManager
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from dagster._serdes import ConfigurableClass, ConfigurableClassData
from dagster_aws.s3 import S3ComputeLogManager

from kfm_dagster.redaction import error_text
from kfm_dagster.settings import Settings

_LOG = logging.getLogger(__name__)


class ComputeLogs(ComputeLogManager, ConfigurableClass):
    """What `dagster.yaml` names: never made itself, it gives the compute logs of this process's environment."""

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        """Nothing is configured in the file."""
        return {}

    @classmethod
    def from_config_value(  # type: ignore[override]
        cls,
        inst_data: ConfigurableClassData | None,
        config_value: Mapping[str, Any],  # noqa: ARG003
    ) -> ComputeLogManager:
        """Return the logs of a bucket, or of files where none is named."""
        files = compute_logs_directory(os.environ["DAGSTER_HOME"])
        bucket, _, prefix = Settings.current().compute_logs_url.removeprefix("s3://").partition("/")
        if not bucket:
            return LocalComputeLogManager(files, inst_data=inst_data)
        return BucketComputeLogs(bucket, local_dir=files, prefix=prefix, inst_data=inst_data)


class BucketComputeLogs(S3ComputeLogManager):
    """Compute logs in a bucket. One that does not take them costs no step: the files stay where they were written."""

    def _on_capture_complete(self, log_key: Sequence[str]) -> None:
        try:
            super()._on_capture_complete(log_key)
        except (Boto3Error, BotoCoreError, ClientError) as error:
            _LOG.warning("the compute log %s stays on this machine: %s", "/".join(log_key), error_text(error))
