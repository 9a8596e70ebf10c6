"""`kfm worker` as a process: it ends after its batch when it is told to. Its deaths are the campaign's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings, environment
from kfm_dagster_tests import clouds
from kfm_dagster_tests.integration.chain import DAY
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

SERVE = "import sys; from kfm_dagster.cli.main import main; main(sys.argv[1:])"


@pytest.fixture
def announced(cloud_server: EmbeddedCloud, contracts: ContractRegistry) -> dict[str, str]:
    """The environment of an embedded cloud whose queue announces three units."""
    clouds.feed(cloud_server, contracts, nexrad_level2_samples(DAY, 3), visibility_timeout=10, max_receive_count=1000)
    return dict(cloud_server.environment())


@pytest.mark.clause("BEY-16")
@pytest.mark.timeout(HANG_SECONDS + 60)
@pytest.mark.one_database
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_after_its_batch_when_it_is_told_to(
    announced: dict[str, str], database_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    variables = announced | {"KFM_HOME": str(tmp_path / "home"), "KFM_WAL_DSN": database_url}
    with environment(variables):
        with subprocess.Popen(
            [sys.executable, "-c", SERVE, "worker", "--json"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                batch = json.loads(process.stdout.readline())
                process.send_signal(number)
                said = process.communicate(timeout=HANG_SECONDS)
            finally:
                process.kill()
        assert (process.returncode, said[0]) == (ExitCode.DONE, "")
        [line] = said[1].splitlines()
        assert line.startswith("kfm worker: Dagster is not told of what is stored")
        pipeline = Pipeline.open(Settings.load())
        [record] = {(record.status, record.ingest_run_id) for record in own_tx(pipeline.ledger).find(limit=10)}
        assert record == (Status.SUCCEEDED, batch["run_id"])
        pipeline.close()
