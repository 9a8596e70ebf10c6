"""After any batch, every message is accounted for and every good unit is pending."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster_tests.ingest.mail import take_in_mail
from kfm_dagster_tests.integration.chain import open_pipeline

MESSAGES = 1_000
"""Messages on each database; half a million in `make soak`."""


@pytest.mark.clause("SEC-05", "BEY-03", "BEY-08")
def test_after_any_batch_every_message_is_accounted_for_and_every_good_unit_is_pending(
    tmp_path: Path, database_url: str
) -> None:
    pipeline = open_pipeline(tmp_path / "home", tmp_path, url=database_url, sns_verify="off")
    assert take_in_mail(pipeline, messages=MESSAGES, seed=1) >= MESSAGES
    pipeline.close()
