"""A field that the envelope gains in its own file is in the ledger, in an artifact and in the record."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FIELDS = """    station: str | None = extension("which station announced the unit")
    measured: datetime | None = extension("when the station says that it measured")
"""
BEFORE = "    integrity: Integrity | None = section()\n"
SCRIPT = """
import importlib.util, json, sys
from datetime import UTC, datetime

name = "kfm_dagster.contracts.envelope"
spec = importlib.util.find_spec(name)
source = open(spec.origin, encoding="utf-8").read()
before, fields, url = sys.argv[1:]
assert source.count(before) == 1
sys.modules[name] = module = importlib.util.module_from_spec(spec)
exec(compile(source.replace(before, fields + before), spec.origin, "exec"), module.__dict__)

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.stages.envelope_table import columns_of, from_parquet, to_parquet
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import make_bench

unit = envelope(1).evolve(station="KTLX", measured=datetime(2025, 4, 1, 12, tzinfo=UTC))
bench = make_bench(Database.open(url), ContractRegistry.load())
bench.ledger.ensure([unit, envelope(2)])
claimed = bench.claim(unit, envelope(2))
kept = from_parquet(to_parquet(columns_of(claimed)))
record = bench.ledger.get(unit.wal_id)
bench.database.dispose()
print(json.dumps({
    "claimed": [(one.station, str(one.measured)) for one in claimed],
    "artifact": [(one.station, str(one.measured)) for one in kept],
    "record": {name: record.extension.get(name) for name in ("station", "measured")},
}))
"""


@pytest.mark.clause("WAL-01")
def test_a_field_added_in_one_file_is_in_ledger_artifact_and_record(database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, BEFORE, FIELDS, database_url], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    both = [["KTLX", "2025-04-01 12:00:00+00:00"], [None, "None"]]
    assert json.loads(done.stdout) == {
        "claimed": both,
        "artifact": both,
        "record": {"station": "KTLX", "measured": "2025-04-01T12:00:00.000000Z"},
    }
