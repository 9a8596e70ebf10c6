"""GeoParquet of a deployment: a run leaves it in line with the catalog, and what is undone leaves it, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from kfm_dagster.catalog.publisher import FolderPublisher
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.followers.geoparquet.test_geoparquet import every_file, published, standing
from kfm_dagster_tests.integration.chain import DAY, FakeQueue, announce, put, run_chain, take, volumes

NEXRAD = "nexrad-l2"


@pytest.mark.clause("OPR-10")
@pytest.mark.one_database
def test_a_run_publishes_its_items_as_geoparquet_and_an_undo_takes_them_back(
    make_pipeline: Callable[..., Pipeline], database_url: str, queue: FakeQueue, objects: Path
) -> None:
    pipeline = make_pipeline(url=database_url, queue=queue, geoparquet=True)
    root = Path(pipeline.settings.catalog)
    items = volumes(3)
    put(objects, items)
    take(pipeline, announce([one.event() for one in items], registry=pipeline.registry))
    run_chain(pipeline, NEXRAD, DAY.isoformat(), "run", Source.LEDGER)
    assert published(FolderPublisher(root), NEXRAD) == standing(root, NEXRAD)
    assert len(every_file(root, NEXRAD)) == 3
    assert "geoparquet-items" in orjson.loads((root / NEXRAD / "collection.json").read_bytes())["assets"]

    pipeline.catalog.undo(NEXRAD, "run")
    pipeline.following.catch_up(pipeline.followers)
    assert published(FolderPublisher(root), NEXRAD) == {}
    assert every_file(root, NEXRAD) == []


@pytest.mark.one_database
def test_a_deployment_that_wants_none_has_none(
    make_pipeline: Callable[..., Pipeline], database_url: str, queue: FakeQueue
) -> None:
    assert make_pipeline(url=database_url, queue=queue, geoparquet=False).followers == []
