"""The guide to governance, typed into a shell as it is written, over two of the radars that it tells of."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ingest.nodes import Source
from kfm_dagster_tests.docs.console import commands, script, shell, told
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, Clock, StoredObject, good, open_pipeline, put, run_chain, volumes
from kfm_dagster_tests.timeouts import HANG_SECONDS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "governance.md"
DATASET = "council-radars"


@pytest.mark.clause("SEC-03")
def test_every_command_of_the_guide_does_what_it_says(forks: dict[str, str], tmp_path: Path) -> None:
    found = list(commands(GUIDE.read_text(encoding="utf-8")))
    declared = next(number for number, command in enumerate(found) if "kfm units cases" in command.text)
    done = shell(script(found[:declared]), tmp_path, seconds=HANG_SECONDS, variables=forks)
    assert done.returncode == 0, told(found, done.stdout)
    assert "council-radars: the contract is in order" in done.stdout
    assert "indigenous_data_flag needs consent" in done.stdout

    embargoed, shown = ingest(tmp_path)
    later = [command for command in found[declared:] if command.text]
    variables = forks | {"KFM_CONTRACTS_DIR": str(tmp_path / "contracts")}
    done = shell(script(later), tmp_path, seconds=HANG_SECONDS, variables=variables)
    assert done.returncode == 0, told(later, done.stdout)
    # A table folds its reasons, as those of the embargo.
    for line in (
        "embargo: embargoed until",
        " 2025-05-02T",
        f"{embargoed}: quarantined > pending",
        "the sites are sacred",
    ):
        assert line in done.stdout
    assert shown not in done.stdout


def ingest(folder: Path) -> tuple[str, str]:
    """Ingest one volume while it is under embargo and another one when that is over; return their units."""
    pipeline = open_pipeline(folder / ".kfm", folder / "objects")
    pipeline.registry = ContractRegistry.load(folder / "contracts")
    assert isinstance(pipeline.clock, Clock)
    items = [_moved(item) for item in volumes(2)]
    for item, now in zip(items, (datetime(2025, 4, 10, tzinfo=UTC), pipeline.clock.now), strict=True):
        pipeline.clock.now = now
        put(folder / "objects", [item])
        run_chain(pipeline, DATASET, DAY.isoformat(), f"run-{now:%Y}", Source.LISTING)
    records = traces.records(pipeline)
    assert list(traces.items(Path(pipeline.settings.catalog))) == [items[1].uri]
    pipeline.close()
    return records[items[0].uri].wal_id, records[items[1].uri].wal_id


def _moved(item: StoredObject) -> StoredObject:
    name = item.key.rpartition("/")[2]
    return good("council-radars", f"volumes/{DAY:%Y/%m/%d}/{name}", item.announced)
