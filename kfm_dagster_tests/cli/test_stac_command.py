"""`kfm stac` shows differences between API and catalog by day and Item; a rebuild removes the differences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.preflight import hold_roots
from kfm_dagster.settings import Settings
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog.envelopes import DAY, candidates, goes, nexrad
from kfm_dagster_tests.cli.test_cli import DOWN, SECRET
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.databases import execute

TODAY = f"{DAY:%Y-%m-%d}"


@pytest.fixture
def deployment(home: Path, stac_api_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment with a STAC API; catalog and API have four Items."""
    monkeypatch.setenv("KFM_STAC_API_DSN", stac_api_url.replace("+psycopg2", ""))
    pipeline = Pipeline.open(Settings.load())
    hold_roots(pipeline.settings, pipeline.database)
    contracts = ContractRegistry.load()
    for batch in ([goes(0), goes(1), goes(2)], [nexrad()]):
        pipeline.catalog.register(candidates(contracts, batch, "run"), fence=open_fence)
    pipeline.following.catch_up(pipeline.followers, within=60)
    pipeline.close()


def days(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["collection_id"]: row["days"][0] for row in rows}


@pytest.mark.clause("OPR-23")
def test_differences_are_shown_and_a_rebuild_removes_them(deployment: None, call: Call, stac_api_url: str) -> None:
    fine = call("stac", "check", "--json")
    assert fine.code == ExitCode.DONE
    day = days(fine.rows)["goes-abi"]
    assert (day["day"], day["catalog"], day["api"]) == (TODAY, 3, 3)
    assert day["catalog_sha256"] == day["api_sha256"] != "0" * 64

    [candidate] = candidates(ContractRegistry.load(), [goes(1)], "run")
    damages: list[tuple[str, tuple[int, int], str | None]] = [
        ("DELETE FROM items WHERE id = '{}'", (3, 2), "missing"),
        (
            "UPDATE items SET content = content || '{{\"stac_version\": \"1.0.0\"}}' WHERE id = '{}'",
            (3, 3),
            "differing",
        ),
        ("UPDATE items SET geometry = ST_Translate(geometry, 0.000001, 0) WHERE id = '{}'", (3, 3), "differing"),
        ("UPDATE items SET id = 'stray' WHERE id = '{}'", (3, 3), "extra"),
        ("UPDATE collections SET content = content || '{{\"title\": \"x\"}}' WHERE id = 'goes-abi'", (3, 3), None),
    ]
    for damage, counts, kind in damages:
        execute(stac_api_url, "SET search_path TO pgstac, public", damage.format(candidate.item_id))
        checked = call("stac", "check", "--json")
        assert checked.code == ExitCode.FINISHED_WITH_FAILURES, damage
        assert [row["collection_id"] for row in checked.rows if not row["equal"]] == ["goes-abi"]
        day = days(checked.rows)["goes-abi"]
        assert (day["catalog"], day["api"]) == counts, damage
        if kind is not None:
            assert day["catalog_sha256"] != day["api_sha256"]
            assert day[kind] == ("stray" if kind == "extra" else candidate.item_id)
        assert call("stac", "check", "--collection", "nexrad-l2").code == ExitCode.DONE

        assert call("stac", "rebuild", "--collection", "goes-abi").code == ExitCode.DONE
        assert call("stac", "check", "--json").rows == fine.rows, damage


def test_an_unreachable_api_gives_one_error_line_and_counts_as_a_failure_of_its_follower(
    home: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_STAC_API_DSN", DOWN)
    pipeline = Pipeline.open(Settings.load())
    pipeline.catalog.register(candidates(ContractRegistry.load(), [goes(0)], "run"), fence=open_fence)
    pipeline.following.catch_up(pipeline.followers)
    pipeline.close()
    [place] = call("stac", "status", "--json").rows
    assert (place["collection_id"], place["behind"], place["failures"]) == ("goes-abi", 1, 1)
    assert datetime.fromisoformat(place["next_attempt_at"]) > datetime.now(UTC) - timedelta(minutes=5)
    assert "127.0.0.1" in str(place["last_error"])
    answer = call("stac", "check")
    answer.refused(code=ExitCode.DEPENDENCY_UNAVAILABLE)
    assert SECRET not in answer.err + str(place)


@pytest.mark.clause("OPR-10")
def test_removed_geoparquet_files_are_rebuilt(home: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFM_GEOPARQUET", "true")
    settings = Settings.load()
    pipeline = Pipeline.open(settings)
    hold_roots(pipeline.settings, pipeline.database)
    pipeline.catalog.register(candidates(ContractRegistry.load(), [goes(0), goes(1)], "run"), fence=open_fence)
    pipeline.following.catch_up(pipeline.followers)
    pipeline.close()
    files = sorted(Path(settings.catalog).rglob("*.parquet"))
    before = call("items", "search", "--json").rows
    assert len(before) == 2
    for file in files:
        file.unlink()
    next_step = "kfm stac rebuild --place geoparquet"
    call("items", "search").refused(next_step, code=ExitCode.DEPENDENCY_UNAVAILABLE)
    filled = call("stac", "rebuild", "--place", "geoparquet", "--collection", "goes-abi", "--json")
    assert (filled.code, filled.rows) == (ExitCode.DONE, [{"collection_id": "goes-abi", "changes": 2}])
    assert call("items", "search", "--json").rows == before
    call("stac", "rebuild", "--place", "virtual-zarr").refused("expected geoparquet;")


def test_an_unknown_collection_is_refused(deployment: None, call: Call) -> None:
    call("stac", "rebuild", "--collection", "goes-abj").refused("goes-abi")
