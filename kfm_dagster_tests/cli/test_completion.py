"""Shell completion offers the deployment's names, and nothing if the deployment is unreachable."""

from __future__ import annotations

from pathlib import Path

from click.shell_completion import BashComplete

from kfm_dagster.cli import completion
from kfm_dagster.cli.main import kfm
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings, environment
from kfm_dagster_tests.commands import parameters
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.transactions import own_tx

NAMES = {
    "backfill_id": completion.BACKFILL,
    "dataset": completion.DATASET,
    "dataset_id": completion.DATASET,
    "datasets": completion.DATASET,
    "error_code": completion.ERROR_CODE,
    "error_codes": completion.ERROR_CODE,
    "replay_run_id": completion.REPLAY,
    "run": completion.RUN,
    "wal_id": completion.UNIT,
    "wal_ids": completion.UNIT,
}
"""Parameter name > the type that completes its values, the same in every command."""


def offered(*typed: str) -> list[str]:
    *before, incomplete = typed
    shell = BashComplete(kfm, {}, "kfm", "_KFM_COMPLETE")
    return [item.value for item in shell.get_completions(before, incomplete)]


def test_every_parameter_with_a_known_name_completes_its_values() -> None:
    named = [(path, option) for path, _, option in parameters() if option.name in NAMES and not option.is_eager]
    assert len(named) > 30
    for path, option in named:
        expected = completion.DATASET_OR_ALL if path in {("pause",), ("resume",)} else NAMES[str(option.name)]
        assert option.type is expected, (path, option.name)


def test_the_shell_offers_names_of_the_deployment(home: Path) -> None:
    assert offered("wal", "show", "") == []
    assert not home.exists()
    pipeline = Pipeline.open(Settings.load())
    units = [envelope(number) for number in range(60)]
    own_tx(pipeline.ledger).ensure(units)
    wal_ids = sorted(record.wal_id for record in own_tx(pipeline.ledger).find(limit=100))
    pipeline.close()

    assert offered("wal", "show", "") == wal_ids[: completion.MOST_OFFERED]
    assert offered("wal", "show", wal_ids[55][:9]) == [wal_ids[55]]
    assert offered("release", wal_ids[0], wal_ids[1][:9]) == [wal_ids[1]]
    assert offered("wal", "list", "--dataset", "hr") == ["hrrr"]
    assert offered("kill-switch", "on", "a") == ["all"]
    assert offered("wal", "list", "--error-code", "gate_") == offered("replay", "select", "--error-code", "gate_")
    assert offered("explain", "la") == ["latest"]


def test_an_unreachable_deployment_offers_no_completions(home: Path) -> None:
    for name, value, typed in (
        ("KFM_WAL_DSN", "postgresql://127.0.0.1:1/kfm", "wal show 0"),
        ("KFM_WAL_DSN", "no address", "explain 0"),
        ("KFM_CONTRACTS_DIR", "nowhere", "queue create --dataset h"),
    ):
        with environment({name: value}):
            assert offered(*typed.split()) == []
    assert not home.exists()
