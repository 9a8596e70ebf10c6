"""Sensitive areas: which footprints meet one, what a file has to be, and what becomes of a unit of an open dataset."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from pyproj import Geod

from kfm_dagster.contracts.envelope import CheckStatus, Metadata
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.areas import load_areas
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.governance.masking import generalised, outline
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.ingest.nodes import Source, masking_params
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster_tests.governance.test_governed_chain import arrive, items_of, positions_of, stored_positions
from kfm_dagster_tests.integration.chain import DATASET, PARTITION, open_pipeline, run_chain, volumes
from kfm_dagster_tests.lineage.prov_json import prov_json
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

Box = tuple[float, float, float, float]
ASKED = {"requested_by": "steward", "reason": "sites are sacred", "change_ref": "CARE-1"}
H3 = {"method": "h3", "resolution": 3, **ASKED}
DONUT = {"method": "donut", "minimum_m": 20_000, "maximum_m": 90_000, **ASKED}
SALT = "a secret of sixteen bytes or more"
EARTH = Geod(ellps="sphere")


def ring(box: Box) -> list[list[float]]:
    """The box as one ring, which is not cut where it crosses the antimeridian."""
    west, south, east, north = box
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def feature(
    coordinates: Any, *, kind: str = "Polygon", masking: dict[str, Any] = H3, **properties: Any
) -> dict[str, Any]:
    geometry = {"type": kind, "coordinates": coordinates}
    return {"type": "Feature", "properties": {"name": "the hill", **masking, **properties}, "geometry": geometry}


def settings_with(folder: Path, *features: dict[str, Any], **more: Any) -> Settings:
    path = folder / "areas.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return Settings(home=folder / "home", sensitive_areas=path, **more)


def meets(folder: Path, coordinates: Any, box: Box) -> bool:
    areas = load_areas(settings_with(folder, feature(coordinates)))
    return areas.met_by(outline(box)) is not None


AROUND_THE_POLE = [[0.0, 80.0], [90.0, 80.0], [180.0, 80.0], [-90.0, 80.0], [0.0, 80.0]]


@pytest.mark.clause("IEN-17")
@pytest.mark.parametrize(
    ("area", "box", "met"),
    [
        (ring((10, 0, 11, 1)), (10.5, 0.5, 12, 2), True),
        (ring((10, 0, 11, 1)), (12, 0, 13, 1), False),
        # Inside it, and around it.
        (ring((10, 0, 11, 1)), (10.4, 0.4, 10.6, 0.6), True),
        (ring((10.4, 0.4, 10.6, 0.6)), (10, 0, 11, 1), True),
        # Across the antimeridian: not cut, seen from both sides; and two that only touch there.
        (ring((179, 0, -179, 1)), (-179.5, 0, -178, 1), True),
        (ring((179, 0, -179, 1)), (178, 0, 179.5, 1), True),
        (ring((179, 0, -179, 1)), (179.5, 0, -179.5, 1), True),
        (ring((179, 0, -179, 1)), (-178, 0, 178, 1), False),
        (ring((179, 0, 180, 1)), (-180, 0, -179, 1), True),
        # Around a pole, and two that meet in the pole alone.
        (AROUND_THE_POLE, (120, 85, 130, 86), True),
        (AROUND_THE_POLE, (120, 70, 130, 79), False),
        (AROUND_THE_POLE, (-180, -90, 180, -80), False),
        (ring((10, 85, 20, 90)), (150, 88, 160, 90), True),
        (ring((10, -90, 20, -85)), (150, -90, 160, -88), True),
        (ring((10, 85, 20, 89)), (150, 88, 160, 90), False),
    ],
)
def test_a_footprint_meets_an_area_anywhere_on_the_globe(
    tmp_path: Path, area: list[list[float]], box: Box, *, met: bool
) -> None:
    assert meets(tmp_path, [area], box) is met


@pytest.mark.clause("IEN-17")
def test_a_file_that_is_none_is_refused_in_one_line_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / "areas.geojson"
    for content, says in (
        ("[", "is not JSON"),
        ("{}", "type is wrong"),
        ({"features": []}, "features is wrong"),
        ({"features": [feature([ring((0, 0, 1, 1))]) | {"geometry": None}]}, "features.0.geometry is wrong"),
        ({"features": [feature([1.0, 2.0], kind="Point")]}, "features.0.geometry.type is wrong"),
        ({"features": [feature([])]}, "features.0.geometry is wrong"),
        ({"features": [feature([ring((0, 0, 1, 1)), []])]}, "features.0.geometry is wrong"),
        ({"features": [feature([[[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]])]}, "features.0.geometry is wrong"),
        ({"features": [feature([ring((0, 0, 1, 91))])]}, "features.0.geometry is wrong"),
        ({"features": [feature([["a"]])]}, "features.0.geometry is wrong"),
        ({"features": [feature([ring((0, 0, 1, 1))], name=" ")]}, "features.0.properties.name is wrong"),
        ({"features": [feature([ring((0, 0, 1, 1))], method="blur")]}, "features.0.properties.method is wrong"),
        ({"features": [feature([ring((0, 0, 1, 1))], level=3)]}, "unknown key 'level'"),
        ({"features": [feature([ring((0, 0, 1, 1))], minimum_m=1.0)]}, "method h3 has resolution"),
        ({"features": [feature([ring((0, 0, 1, 1))], method="donut")]}, "method donut has maximum_m and minimum_m"),
        ({"features": [feature([ring((0, 0, 1, 1))])] * 2}, "repeated: the hill"),
    ):
        path.write_text(content if isinstance(content, str) else json.dumps({"type": "FeatureCollection", **content}))
        settings = Settings(home=tmp_path / "home", sensitive_areas=path)
        with pytest.raises(ConfigurationError) as refused:
            Pipeline.open(settings)
        assert says in str(refused.value)
        assert "KFM_SENSITIVE_AREAS" in str(refused.value)
        assert "\n" not in str(refused.value)
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.clause("IEN-17")
@pytest.mark.parametrize("salt", [None, "too short"])
def test_a_displacement_without_its_secret_is_refused(tmp_path: Path, salt: str | None) -> None:
    more = {} if salt is None else {"masking_salt": SecretStr(salt)}
    settings = settings_with(tmp_path, feature([ring((0, 0, 1, 1))], masking=DONUT), **more)
    with pytest.raises(ConfigurationError, match=r"area the hill is masked by method donut, and KFM_MASKING_SALT"):
        Configuration.load(settings)


def shown_at(box: Box, salt: str = SALT) -> tuple[float, float]:
    """Longitude and latitude of the middle of what a donut shows of a footprint."""
    metadata = Metadata(status=CheckStatus.OK, geometry=outline(box), bbox=box, stac_properties={})
    masked = generalised(metadata, Masking.model_validate(DONUT), salt=salt.encode())
    assert masked.bbox is not None
    west, south, east, north = masked.bbox
    return west + ((east - west) % 360) / 2, (south + north) / 2


@pytest.mark.clause("IEN-17", "IEN-12")
@given(longitude=st.floats(-180, 179.9), latitude=st.floats(-80, 80))
def test_a_donut_shows_a_footprint_at_one_other_place_within_its_bounds(longitude: float, latitude: float) -> None:
    box = (longitude, latitude, min(longitude + 0.01, 180.0), latitude + 0.01)
    shown = shown_at(box)
    assert shown == shown_at(box), "the same place is always shown at the same one"
    _, _, away = EARTH.inv(longitude, latitude, *shown)
    # What is shown is a cell around the displaced place; its radius is a quarter of the ring, at most.
    assert DONUT["minimum_m"] - 20_000 <= away <= DONUT["maximum_m"] + 20_000
    assert math.isfinite(away)


@pytest.mark.clause("IEN-17")
def test_where_a_donut_shows_a_footprint_is_a_secret_of_the_deployment() -> None:
    places = [(float(degrees), 40.0, degrees + 0.01, 40.01) for degrees in range(-120, -40, 10)]
    shown = [shown_at(place) for place in places]
    assert shown != [shown_at(place, salt="another secret of sixteen bytes") for place in places]
    bearings = [EARTH.inv(*place[:2], *at)[0] % 360 for place, at in zip(places, shown, strict=True)]
    assert len({bearing // 90 for bearing in bearings}) > 2, "one step for all of them would be learnt from any of them"


@pytest.mark.clause("IEN-17", "IEN-12")
@pytest.mark.parametrize("masking", [H3, DONUT], ids=["h3", "donut"])
def test_what_meets_an_area_is_masked_in_an_open_dataset_before_anything_of_it_is_stored(
    tmp_path: Path, masking: dict[str, Any]
) -> None:
    first, *_, last = volumes(24)
    exact = positions_of(first, tmp_path / "open")
    with closing(open_pipeline(tmp_path / "plain", tmp_path / "objects")) as plain:
        arrive(plain, tmp_path / "objects", first, last)
        run_chain(plain, DATASET, PARTITION, "run", Source.LEDGER)
        unmasked = items_of(plain)

    west, south, east, north = unmasked[first.uri]["bbox"]
    middle = ((west + east) / 2, (south + north) / 2)
    # A tenth of a degree within the one, and far from the other.
    around = ring((middle[0] - 0.05, middle[1] - 0.05, middle[0] + 0.05, middle[1] + 0.05))
    hill = feature([around], masking=masking, properties=["platform", "instruments"])
    more = {"sensitive_areas": settings_with(tmp_path, hill).sensitive_areas, "masking_salt": SecretStr(SALT)}
    seen: list[str] = []
    with closing(open_pipeline(tmp_path / "masked", tmp_path / "objects", **more)) as pipeline:
        arrive(pipeline, tmp_path / "objects", first, last)
        for run in ("run", "again"):
            run_chain(
                pipeline, DATASET, PARTITION, run, Source.LEDGER,
                seen=lambda batch: seen.extend(str(unit) for unit in batch.envelopes if unit.object_uri == first.uri),
            )  # fmt: skip
        items = items_of(pipeline)
        # What meets no area is as it was.
        assert items[last.uri]["geometry"] == unmasked[last.uri]["geometry"]
        assert "kfm:masking" not in items[last.uri]["properties"]
        properties = items[first.uri]["properties"]
        assert properties["kfm:masking"] == str(Masking.model_validate({**masking, "properties": []}))
        assert {name for name in properties if not name.startswith("kfm:")} == {
            "datetime", "start_datetime", "end_datetime", "platform", "instruments", "storage:schemes",
        }  # fmt: skip
        assert stored_positions(exact, pipeline, seen) == []
        [entry] = own_tx(pipeline.ledger.log).entries(action=GovernanceAction.MASK, dataset=DATASET)
        assert (entry.actor, entry.reason, entry.change_ref) == ("steward", "sites are sacred", "CARE-1")
        assert entry.details.items() >= {"area": "the hill", "units": 1, "method": masking["method"]}.items()
        [document] = (Path(pipeline.settings.lineage) / "prov").rglob("*.jsonld")
    prov = prov_json(document.read_bytes())
    [activity] = [node for node, one in prov["activity"].items() if one.get("kfm:method") == masking["method"]]
    [place] = [one["prov:entity"] for one in prov["wasGeneratedBy"].values() if one["prov:activity"] == activity]
    users = [one["prov:generatedEntity"] for one in prov["wasDerivedFrom"].values() if one["prov:usedEntity"] == place]
    assert [prov["entity"][user]["kfm:stac_item_id"] for user in users] == [items[first.uri]["id"]]
    assert "the hill" not in document.read_text(), "the area's name is the deployment's own"


@pytest.mark.clause("IEN-17")
def test_other_areas_or_another_secret_make_other_content_and_no_area_changes_nothing(
    tmp_path: Path, contracts: ContractRegistry
) -> None:
    contract = contracts["nexrad-l2"]
    plain = Settings(home=tmp_path)
    assert masking_params(plain, contract) == {}
    found = []
    for number, salt in ((1, SALT), (1, SALT + "!"), (2, SALT)):
        (tmp_path / str(number)).mkdir(exist_ok=True)
        settings = settings_with(
            tmp_path / str(number), feature([ring((0, 0, number, 1))]), masking_salt=SecretStr(salt)
        )
        found.append(masking_params(settings, contract)["masking"])
    assert len(set(found)) == 3
