"""Governance through the real nodes: refused units, log entries, and masked locations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from pyproj import Geod

from kfm_dagster.contracts.envelope import CheckStatus, Metadata
from kfm_dagster.contracts.issues import GovernanceIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.stewardship import Governance, Masking
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.areas import load_areas
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceEntry
from kfm_dagster.governance.masking import generalised, outline
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.ingest.evidence import read_evidence
from kfm_dagster.ingest.nodes import MetadataExtract, Settle, Source, masking_params
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.governance.conftest import cases_of, release
from kfm_dagster_tests.governance.test_rules import MASKING, governance
from kfm_dagster_tests.integration import chain, traces
from kfm_dagster_tests.integration.chain import DATASET, PARTITION, open_pipeline, run_chain, volumes
from kfm_dagster_tests.lineage.schemas import prov_json
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

SHOWN = ["platform", "instruments", "nexrad:message-type"]
SHIELDED = {"sensitivity": "sensitive", "access": "restricted", "masking": MASKING | {"properties": SHOWN}}
RUN = "run-1"
JANE = Decision(actor="jane", reason="the embargo is over", change_ref="CHG-7")
Open = Callable[..., Pipeline]


def under(pipeline: Pipeline, declared: Governance) -> Pipeline:
    """Return the pipeline with another governance section for NEXRAD."""

    def governed(contract: DatasetContract) -> DatasetContract:
        if contract.stac.collection != chain.DATASET:
            return contract
        document = contract.model_dump(mode="json") | {"governance": declared.model_dump(mode="json")}
        document["metadata_extract"]["required"] = SHOWN
        return DatasetContract.model_validate(document)

    pipeline.registry = ContractRegistry.of(governed(contract) for contract in pipeline.registry)
    return pipeline


@pytest.fixture
def opened(tmp_path: Path, objects: Path, database_url: str) -> Iterator[Open]:
    """Return a function that opens the deployment under a governance section, as a new process."""
    with ExitStack() as stack:

        def open_deployment(**declared: Any) -> Pipeline:
            pipeline = chain.open_pipeline(tmp_path / "home", objects, url=database_url)
            return under(stack.enter_context(closing(pipeline)), governance(**declared))

        yield open_deployment


def items_of(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    catalog = Path(pipeline.settings.catalog)
    return traces.items(catalog) if (catalog / "catalog.json").exists() else {}


def logged(pipeline: Pipeline, action: GovernanceAction) -> list[GovernanceEntry]:
    return own_tx(pipeline.ledger.log).entries(action=action, dataset=chain.DATASET)


def logged_refusals(pipeline: Pipeline) -> list[GovernanceEntry]:
    """Return the entries of quarantines caused by governance."""
    quarantines = logged(pipeline, GovernanceAction.QUARANTINE)
    return [entry for entry in quarantines if entry.details["reason_code"] == GovernanceIssue.HARD_FAIL]


@pytest.mark.clause("SEC-03", "WSM-09", "BEY-06")
@pytest.mark.parametrize(
    ("declared", "rule"),
    [
        ({"access": "closed"}, "access: access is closed, expected open or restricted"),
        (
            {"embargo": {"until": "2027-01-01T00:00:00Z"}},
            "embargo: embargoed until 2027-01-01T00:00:00.000000Z, expected an embargo that is over at {at}",
        ),
        (
            {
                "indigenous_data_flag": True,
                "consent": {"authority": "a council", "reference": "MOU-7", "valid_until": chain.START},
            },
            "consent: MOU-7 was valid until 2026-01-01T00:00:00.000000Z, expected a consent that is valid at {at}",
        ),
    ],
    ids=["access", "embargo", "consent"],
)
def test_units_refused_by_governance_are_quarantined_immediately_without_item_or_lineage(
    declared: dict[str, Any], rule: str, opened: Open
) -> None:
    rule = rule.format(at="2026-01-01T01:00:00.000000Z")
    pipeline = opened(**declared)
    sound, truncated = chain.volumes(2)[0], chain.truncated(chain.volumes(2)[1])
    chain.deliver_each(pipeline, sound, truncated)
    chain.work_until_done(pipeline)
    records = traces.records(pipeline)
    record = records[sound.uri]
    assert (record.status, record.attempts) == (Status.QUARANTINED, 1)
    assert (record.last_error_code, record.last_error_message) == (GovernanceIssue.HARD_FAIL, rule)
    *_, failed, quarantined = own_tx(pipeline.ledger).history(record.wal_id)
    assert (failed.from_status, failed.to_status) == (Status.IN_PROGRESS, Status.FAILED)
    assert (quarantined.from_status, quarantined.to_status) == (Status.FAILED, Status.QUARANTINED)
    # A unit with another failure keeps its own error and the contract's attempts.
    assert (records[truncated.uri].last_error_code, records[truncated.uri].attempts) == ("size_mismatch", 3)
    assert items_of(pipeline) == {}
    assert not list(Path(pipeline.settings.lineage).rglob("*.*"))
    [entry] = logged_refusals(pipeline)
    assert (entry.wal_id, entry.reason, entry.details["run_id"]) == (record.wal_id, rule, record.ingest_run_id)
    [case] = [case for case in cases_of(pipeline).find(CaseState.OPEN) if case.wal_id == record.wal_id]
    bundle = read_evidence(pipeline.store, case.evidence_file)
    assert (bundle["reason"], bundle["operator"]) == (GovernanceIssue.HARD_FAIL, MetadataExtract.operator)
    shown = {"state": "withheld", "size": len(sound.announced), "first_hex": "", "last_hex": ""}
    assert shown.items() <= bundle["found"].items()


@pytest.mark.clause("SEC-03", "WSM-16", "BEY-06")
def test_an_embargoed_unit_is_quarantined_again_until_the_embargo_ends(opened: Open) -> None:
    end = datetime(2026, 2, 1, tzinfo=UTC)
    pipeline = opened(embargo={"until": end})
    item = chain.volumes(1)[0]
    chain.deliver_each(pipeline, item)
    chain.work_until_done(pipeline)
    for now, status in ((end - timedelta(days=1), Status.QUARANTINED), (end, Status.SUCCEEDED)):
        pipeline.clock.now = now
        record = traces.records(pipeline)[item.uri]
        assert release(pipeline, record.wal_id, record.version, JANE) == {record.wal_id}
        chain.work_until_done(pipeline)
        assert traces.records(pipeline)[item.uri].status is status
    assert items_of(pipeline).keys() == {item.uri}
    assert len(logged_refusals(pipeline)) == 2
    cases = own_tx(cases_of(pipeline)).of(record.wal_id)
    attempts = [read_evidence(pipeline.store, case.evidence_file)["attempts"] for case in cases]
    assert ([case.state for case in cases], attempts) == ([CaseState.RELEASED] * 2, [2, 1])
    collection = traces.catalog_tree(Path(pipeline.settings.catalog))["nexrad-l2/collection.json"]
    assert collection["kfm:embargo"] == "until 2026-02-01T00:00:00+00:00"


@pytest.mark.clause("SEC-03")
def test_every_attempt_of_a_run_decides_by_the_time_of_the_run_s_claims(opened: Open) -> None:
    """An embargo that ends between a run's death and re-execution does not change the run's outcome."""
    pipeline = opened(embargo={"until": chain.START + timedelta(minutes=1)})
    chain.deliver_each(pipeline, chain.volumes(1)[0])
    dies_at = chain.Failpoint(operator=MetadataExtract.operator, point="computed")
    with pytest.raises(chain.CrashError):
        chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER, dies_at=dies_at)
    pipeline.clock.forward(120)
    chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER)
    assert traces.statuses(pipeline) == {"quarantined": 1}


@pytest.mark.clause("SEC-03")
@pytest.mark.parametrize(
    "failpoint",
    [
        chain.Failpoint(operator=kind.operator, point=point)
        for kind in (MetadataExtract, Settle)
        for point in ("computed", "committing", "committed")
    ],
    ids=str,
)
def test_a_refusal_and_a_mask_are_logged_once_despite_crashes(failpoint: chain.Failpoint, opened: Open) -> None:
    shown, embargoed = chain.volumes(24)[0], chain.volumes(24)[-1]
    embargo = {"days_after_observation": 1}
    pipeline = opened(**SHIELDED, embargo=embargo)
    pipeline.clock.now = datetime(2025, 4, 3, 12, tzinfo=UTC)
    chain.deliver_each(pipeline, shown, embargoed)
    with pytest.raises(chain.CrashError):
        chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER, dies_at=failpoint)
    before = len(logged(pipeline, GovernanceAction.MASK)), len(logged_refusals(pipeline))
    of_settle, committed = failpoint.operator == Settle.operator, failpoint.point == "committed"
    assert before == (int(of_settle or committed), int(of_settle and committed))
    for _ in range(2):
        chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER)
    [masked] = logged(pipeline, GovernanceAction.MASK)
    assert (masked.actor, masked.reason, masked.change_ref) == ("steward", "sites are sacred", "CARE-1")
    scope = {"run_id": RUN, "partition": chain.PARTITION, "units": 2}
    assert masked.details == {"method": "h3", "parameters": {"resolution": 4}, **scope}
    [refused] = logged_refusals(pipeline)
    assert refused.wal_id == traces.records(pipeline)[embargoed.uri].wal_id
    assert items_of(pipeline).keys() == {shown.uri}
    # Another run makes its own decision.
    second = chain.volumes(24)[1]
    chain.deliver_each(pipeline, second)
    chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, "run-2", Source.LEDGER)
    assert [entry.details["run_id"] for entry in logged(pipeline, GovernanceAction.MASK)] == ["run-2", RUN]


@pytest.mark.clause("SEC-03")
def test_an_exact_location_is_neither_stored_nor_shown(opened: Open, tmp_path: Path) -> None:
    item, truncated = chain.volumes(2)[0], chain.truncated(chain.volumes(2)[1])
    exact = positions_of(item, tmp_path / "open")
    pipeline = opened(**SHIELDED)
    batches: list[str] = []
    chain.deliver_each(pipeline, item, truncated)
    chain.run_chain(
        pipeline, chain.DATASET, chain.PARTITION, RUN, Source.LEDGER,
        seen=lambda batch: batches.extend(map(str, batch.envelopes)),
    )  # fmt: skip
    assert stored_positions(exact, pipeline, batches) == []
    [shown] = items_of(pipeline).values()
    properties = shown["properties"]
    generic = {"datetime", "start_datetime", "end_datetime", "storage:schemes"}
    assert {name for name in properties if not name.startswith("kfm:")} == {*SHOWN, *generic}
    notice = {"kfm:sensitivity": "sensitive", "kfm:access": "restricted", "kfm:masking": "h3, resolution 4"}
    assert notice.items() <= properties.items()
    assert notice.items() <= traces.catalog_tree(Path(pipeline.settings.catalog))["nexrad-l2/collection.json"].items()
    assert logged_refusals(pipeline) == []
    [document] = (Path(pipeline.settings.lineage) / "prov").rglob("*.jsonld")
    activities = prov_json(document.read_bytes())["activity"].values()
    [masking] = [activity for activity in activities if activity.get("kfm:method") == "h3"]
    assert (masking["kfm:dataset"], masking["kfm:change_ref"]) == (pipeline.registry[chain.DATASET].public_id, "CARE-1")


def positions_of(item: chain.StoredObject, folder: Path) -> set[str]:
    """Return every coordinate that an open dataset shows of the object, as text."""
    chain.put(folder / "objects", [item])
    with closing(chain.open_pipeline(folder / "home", folder / "objects")) as pipeline:
        chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, RUN)
        [shown] = items_of(pipeline).values()
    assert not {"kfm:sensitivity", "kfm:access", "kfm:masking"} & shown["properties"].keys()
    pairs = [*shown["geometry"]["coordinates"][0], shown["bbox"]]
    degrees = {str(degrees) for pair in pairs for degrees in pair}
    degrees |= {str(shown["properties"][f"nexrad:{name}"]) for name in ("latitude", "longitude")}
    # Shorter numbers could have other meanings.
    return {text for text in degrees if len(text) > 7}


def stored_positions(exact: set[str], pipeline: Pipeline, batches: list[str]) -> list[str]:
    """Return the positions that occur in the deployment's files, its rows, or the batches."""
    home = Path(pipeline.settings.home)
    texts = [path.read_text(encoding="utf-8") for path in home.rglob("*.*json*") if path.suffix != ".gz"]
    texts += [row for rows in every_row(pipeline.database).values() for row in rows] + batches
    return [position for position in exact if any(position in text for text in texts)]


Box = tuple[float, float, float, float]
ASKED = {"requested_by": "steward", "reason": "sites are sacred", "change_ref": "CARE-1"}
H3 = {"method": "h3", "resolution": 3, **ASKED}
DONUT = {"method": "donut", "minimum_m": 20_000, "maximum_m": 90_000, **ASKED}
SALT = "a secret of sixteen bytes or more"
EARTH = Geod(ellps="sphere")


def ring(box: Box) -> list[list[float]]:
    """Return the box as one ring, not split at the antimeridian."""
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


AROUND_THE_POLE = [[0.0, 80.0], [90.0, 80.0], [180.0, 80.0], [-90.0, 80.0], [0.0, 80.0]]


@pytest.mark.clause("IEN-17")
@pytest.mark.parametrize(
    ("area", "box", "met"),
    [
        (ring((10, 0, 11, 1)), (10.5, 0.5, 12, 2), True),
        (ring((10, 0, 11, 1)), (12, 0, 13, 1), False),
        # A box inside the area, and a box around the area.
        (ring((10, 0, 11, 1)), (10.4, 0.4, 10.6, 0.6), True),
        (ring((10.4, 0.4, 10.6, 0.6)), (10, 0, 11, 1), True),
        # An area across the antimeridian, with boxes on both sides; and two boxes that only touch at the antimeridian.
        (ring((179, 0, -179, 1)), (-179.5, 0, -178, 1), True),
        (ring((179, 0, -179, 1)), (178, 0, 179.5, 1), True),
        (ring((179, 0, -179, 1)), (179.5, 0, -179.5, 1), True),
        (ring((179, 0, -179, 1)), (-178, 0, 178, 1), False),
        (ring((179, 0, 180, 1)), (-180, 0, -179, 1), True),
        # Around a pole, and two boxes that intersect only in the pole.
        (AROUND_THE_POLE, (120, 85, 130, 86), True),
        (AROUND_THE_POLE, (120, 70, 130, 79), False),
        (AROUND_THE_POLE, (-180, -90, 180, -80), False),
        (ring((10, 85, 20, 90)), (150, 88, 160, 90), True),
        (ring((10, -90, 20, -85)), (150, -90, 160, -88), True),
        (ring((10, 85, 20, 89)), (150, 88, 160, 90), False),
    ],
)
def test_footprints_and_areas_intersect_anywhere_on_the_globe(
    tmp_path: Path, area: list[list[float]], box: Box, *, met: bool
) -> None:
    areas = load_areas(settings_with(tmp_path, feature([area])))
    assert (areas.met_by(outline(box)) is not None) is met


@pytest.mark.clause("IEN-17")
def test_an_invalid_file_of_areas_is_refused_in_one_line_before_anything_is_created(tmp_path: Path) -> None:
    path = tmp_path / "areas.geojson"
    for content, message in (
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
        (
            {"features": [feature([ring((0, 0, 1, 1))], minimum_m=1.0)]},
            "minimum_m instead of resolution",
        ),
        ({"features": [feature([ring((0, 0, 1, 1))], method="donut")]}, "method donut with resolution instead of"),
        ({"features": [feature([ring((0, 0, 1, 1))])] * 2}, "the same name: the hill"),
    ):
        path.write_text(content if isinstance(content, str) else json.dumps({"type": "FeatureCollection", **content}))
        settings = Settings(home=tmp_path / "home", sensitive_areas=path)
        with pytest.raises(ConfigurationError) as refused:
            Pipeline.open(settings)
        assert message in str(refused.value)
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
    """Return the centre (longitude, latitude) of a footprint masked by a donut."""
    metadata = Metadata(status=CheckStatus.OK, geometry=outline(box), bbox=box, stac_properties={})
    masked = generalised(metadata, Masking.model_validate(DONUT), salt=salt.encode())
    west, south, east, north = masked.bbox
    return west + ((east - west) % 360) / 2, (south + north) / 2


@pytest.mark.clause("IEN-17", "IEN-12")
@given(longitude=st.floats(-180, 179.9), latitude=st.floats(-80, 80))
def test_a_donut_displaces_a_footprint_reproducibly_within_its_bounds(longitude: float, latitude: float) -> None:
    box = (longitude, latitude, min(longitude + 0.01, 180.0), latitude + 0.01)
    shown = shown_at(box)
    assert shown == shown_at(box), "equal footprints must be shown at equal locations"
    _, _, away = EARTH.inv(longitude, latitude, *shown)
    # The shown cell lies around the displaced location, with a radius of at most a quarter of the ring's width.
    assert DONUT["minimum_m"] - 20_000 <= away <= DONUT["maximum_m"] + 20_000
    assert math.isfinite(away)


@pytest.mark.clause("IEN-17")
def test_a_donut_s_displacement_depends_on_the_deployment_s_secret() -> None:
    boxes = [(float(degrees), 40.0, degrees + 0.01, 40.01) for degrees in range(-120, -40, 10)]
    shown = [shown_at(box) for box in boxes]
    assert shown != [shown_at(box, salt="another secret of sixteen bytes") for box in boxes]
    bearings = [EARTH.inv(*box[:2], *at)[0] % 360 for box, at in zip(boxes, shown, strict=True)]
    assert len({bearing // 90 for bearing in bearings}) > 2, "a common displacement could be learnt from one footprint"


@pytest.mark.clause("IEN-17", "IEN-12")
@pytest.mark.parametrize("masking", [H3, DONUT], ids=["h3", "donut"])
def test_a_footprint_in_an_area_is_masked_in_an_open_dataset_before_it_is_stored(
    tmp_path: Path, masking: dict[str, Any]
) -> None:
    first, *_, last = volumes(24)
    exact = positions_of(first, tmp_path / "open")
    with closing(open_pipeline(tmp_path / "plain", tmp_path / "objects")) as plain:
        chain.deliver_each(plain, first, last)
        run_chain(plain, DATASET, PARTITION, "run", Source.LEDGER)
        unmasked = items_of(plain)

    west, south, east, north = unmasked[first.uri]["bbox"]
    middle = ((west + east) / 2, (south + north) / 2)
    # An area of a tenth of a degree inside one footprint and far from the other.
    around = ring((middle[0] - 0.05, middle[1] - 0.05, middle[0] + 0.05, middle[1] + 0.05))
    hill = feature([around], masking=masking, properties=["platform", "instruments"])
    more = {"sensitive_areas": settings_with(tmp_path, hill).sensitive_areas, "masking_salt": SecretStr(SALT)}
    batches: list[str] = []
    with closing(open_pipeline(tmp_path / "masked", tmp_path / "objects", **more)) as pipeline:
        chain.deliver_each(pipeline, first, last)
        for run in ("run", "again"):
            run_chain(
                pipeline, DATASET, PARTITION, run, Source.LEDGER,
                seen=lambda batch: batches.extend(str(e) for e in batch.envelopes if e.object_uri == first.uri),
            )  # fmt: skip
        items = items_of(pipeline)
        # A footprint outside all areas is unchanged.
        assert items[last.uri]["geometry"] == unmasked[last.uri]["geometry"]
        assert "kfm:masking" not in items[last.uri]["properties"]
        properties = items[first.uri]["properties"]
        assert properties["kfm:masking"] == str(Masking.model_validate({**masking, "properties": []}))
        assert {name for name in properties if not name.startswith("kfm:")} == {
            "datetime", "start_datetime", "end_datetime", "platform", "instruments", "storage:schemes",
        }  # fmt: skip
        assert stored_positions(exact, pipeline, batches) == []
        [entry] = own_tx(pipeline.ledger.log).entries(action=GovernanceAction.MASK, dataset=DATASET)
        assert (entry.actor, entry.reason, entry.change_ref) == ("steward", "sites are sacred", "CARE-1")
        assert entry.details.items() >= {"area": "the hill", "units": 1, "method": masking["method"]}.items()
        [document] = (Path(pipeline.settings.lineage) / "prov").rglob("*.jsonld")
    prov = prov_json(document.read_bytes())
    [activity] = [node for node, fields in prov["activity"].items() if fields.get("kfm:method") == masking["method"]]
    [location] = [edge["prov:entity"] for edge in prov["wasGeneratedBy"].values() if edge["prov:activity"] == activity]
    users = [
        edge["prov:generatedEntity"] for edge in prov["wasDerivedFrom"].values() if edge["prov:usedEntity"] == location
    ]
    assert [prov["entity"][user]["kfm:stac_item_id"] for user in users] == [items[first.uri]["id"]]
    assert "the hill" not in document.read_text(), "the area's name is private to the deployment"


@pytest.mark.clause("IEN-17")
def test_content_depends_on_areas_and_secret_and_does_not_change_without_areas(
    tmp_path: Path, contracts: ContractRegistry
) -> None:
    contract = contracts["nexrad-l2"]
    plain = Settings(home=tmp_path)
    assert masking_params(plain, contract) == {}
    hashes = []
    for number, salt in ((1, SALT), (1, SALT + "!"), (2, SALT)):
        (tmp_path / str(number)).mkdir(exist_ok=True)
        settings = settings_with(
            tmp_path / str(number), feature([ring((0, 0, number, 1))]), masking_salt=SecretStr(salt)
        )
        hashes.append(masking_params(settings, contract)["masking"])
    assert len(set(hashes)) == 3
