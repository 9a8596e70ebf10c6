"""The Python API: newest run, best forecast, few requests, and refusal of changed objects."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

import kfm_dagster as kfm
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.samples.cfs import BUCKET as CFS_BUCKET
from kfm_dagster.demo.samples.cfs import make_cfs
from kfm_dagster.demo.samples.goes_abi import make_goes_abi
from kfm_dagster.demo.samples.hrrr import BUCKET, make_hrrr
from kfm_dagster.demo.samples.nexrad_level2 import BUCKET as RADAR_BUCKET
from kfm_dagster.demo.samples.nexrad_level2 import make_nexrad_level2
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError, KfmError, UnknownNameError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.reading.fields import UnreadableObjectError
from kfm_dagster.reading.names import opening
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster_tests.browser.pictures import keep_picture
from kfm_dagster_tests.catalog.real_objects import item_of_file
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.followers.virtual.buckets import put as put_object
from kfm_dagster_tests.integration.chain import good, partitions_of, put, run_chain
from kfm_dagster_tests.programs import printed_by

# rioxarray multiplies transforms in a way that affine has deprecated.
pytestmark = [pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"), pytest.mark.clause("BEY-19")]

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEMPERATURE = "TMP:2 m above ground"
OBJECTS = [
    *((12, lead, "sfc", "conus") for lead in (0, 1, 2)),
    *((13, lead, "sfc", "conus") for lead in (0, 1)),
    (12, 3, "sfc", "alaska"),
    (14, 1, "subh", "conus"),
]
"""Hour of the run, lead, product and region; the newest run has only gusts, the longest lead only Alaska."""


Ingest = Callable[[], Path]


@pytest.fixture
def ingest(
    make_pipeline: Callable[..., Pipeline],
    tmp_path: Path,
    objects: Path,
    aws: EmbeddedCloud,
    monkeypatch: pytest.MonkeyPatch,
) -> Ingest:
    """Return a function that puts a folder's objects into their buckets and ingests them into KFM_HOME."""

    def run() -> Path:
        for file in (path for path in objects.rglob("*") if path.is_file()):
            put_object(aws.endpoint_url, *file.relative_to(objects).as_posix().split("/", 1), file.read_bytes())
        pipeline = make_pipeline(url=migrated_sqlite(tmp_path / "kfm.db"), geoparquet=True)
        pipeline.clock.forward(86_400)
        for dataset, partition in partitions_of(objects, pipeline.registry):
            run_chain(pipeline, dataset, partition, f"{dataset}-{partition}")
        pipeline.following.catch_up(pipeline.followers, within=60)
        monkeypatch.setenv("KFM_HOME", str(pipeline.settings.home))
        return Path(pipeline.settings.catalog)

    return run


def put_hrrr(objects: Path) -> None:
    """Write the objects of HRRR to a folder."""
    for hour, lead, product, region in OBJECTS:
        run = datetime(2025, 4, 2, hour, tzinfo=UTC)
        key, content, index = make_hrrr(run=run, lead=lead, product=product, region=region)
        put(objects, [good(BUCKET, key, content), good(BUCKET, f"{key}.idx", index.encode())])


@pytest.fixture
def catalog(objects: Path, ingest: Ingest) -> Path:
    """A catalog of three runs of HRRR in KFM_HOME, with their objects in the bucket."""
    put_hrrr(objects)
    return ingest()


def test_the_latest_item_is_of_the_newest_run_that_has_the_field(catalog: Path) -> None:
    for arguments, name in [
        ({}, "t14z.wrfsubhf01"),
        ({"field": TEMPERATURE}, "t13z.wrfsfcf00"),
        ({"field": "TMP", "level": "2 m above ground"}, "t13z.wrfsfcf00"),
        ({"field": TEMPERATURE, "hrrr:lead-hours": 2}, "t12z.wrfsfcf02"),
        ({"field": TEMPERATURE, "hrrr:product": "sfc", "catalog": str(catalog)}, "t13z.wrfsfcf00"),
    ]:
        item = kfm.latest("hrrr", **arguments)  # type: ignore[arg-type]
        assert item.id == f"hrrr.20250402.conus.{name}"
        assert Path(str(item.get_self_href())).read_bytes()
    with pytest.raises(
        UnknownNameError,
        match=r"observed TMP:500 mb, hrrr:product=sfc; expected an Item since 2025-03-22; the newest, hrrr.*, has GUST",
    ):
        kfm.latest("hrrr", field="TMP:500 mb", **{"hrrr:product": "sfc"})


def test_the_rows_of_a_gaussian_grid_are_at_the_roots_of_its_legendre_polynomial(objects: Path, ingest: Ingest) -> None:
    key, content, index = make_cfs(run=datetime(2025, 4, 2, tzinfo=UTC), lead=6)
    put(objects, [good(CFS_BUCKET, key, content), good(CFS_BUCKET, f"{key}.idx", index.encode())])
    ingest()
    sines, _ = np.polynomial.legendre.leggauss(190)
    rows = kfm.open("cfs", field="TMP:surface").y.values
    assert rows == pytest.approx(np.degrees(np.arcsin(sines))[::-1])


def test_the_best_forecast_uses_the_newest_run_for_each_valid_time(catalog: Path) -> None:
    for time, runs in [
        (None, {13: 13, 14: 13}),
        ("2025-04-02", {12: 12, 13: 13, 14: 13}),
        ("2025-04-02T12Z", {12: 12}),
    ]:
        field = kfm.best("hrrr", TEMPERATURE, time=time)
        times = (field[name].values.ravel().tolist() for name in ("valid_time", "reference_time"))
        hours = [[moment.hour for moment in moments] for moments in times]
        assert dict(zip(*hours, strict=True)) == runs
        assert field.dims == ("valid_time", "y", "x")
        assert float(field.mean()) == pytest.approx(288.0)
    with pytest.raises(UnknownNameError, match="no Item of hrrr has the field at this time"):
        kfm.best("hrrr", TEMPERATURE, time="2025-04-01")


def test_a_field_is_read_by_one_request_for_exactly_its_bytes(catalog: Path, fetched: list[tuple[str, int]]) -> None:
    item = kfm.search("hrrr", limit=1)[0]
    layers = item.assets["data"].extra_fields["grib:layers"]
    name = max(layers, key=lambda name: layers[name]["start_byte"])
    for source in (item, item.to_dict(), str(item.get_self_href())):
        kfm.open(source, field=name)
    assert [size for _, size in fetched] == [layers[name]["byte_size"]] * 3


def test_only_the_used_chunks_of_a_variable_are_read(
    aws: EmbeddedCloud, shared_data: Path, contracts: ContractRegistry, fetched: list[tuple[str, int]]
) -> None:
    objects = shared_data / "objects"
    [file] = objects.glob("noaa-goes17/ABI-L1b-RadC/2019/300/20/*M6C04*.nc")
    path, content = file.relative_to(objects).as_posix(), file.read_bytes()
    put_object(aws.endpoint_url, *path.split("/", 1), content)
    item = item_of_file(contracts, objects, path)
    corner = kfm.open(item, field="Rad")[:100, :100].load()
    assert corner.shape == (100, 100)
    assert 0 < sum(size for _, size in fetched) < len(content) / 2
    # DQF is in the file, but not listed in the Item; CMI is in neither.
    assert kfm.open(item, field="DQF").dtype.kind == "f"
    with pytest.raises(UnknownNameError, match="has no such field; observed CMI; expected one of "):
        kfm.open(item, field="CMI")


def test_a_replaced_object_is_never_read(catalog: Path, aws: EmbeddedCloud) -> None:
    item = kfm.search("hrrr", limit=1)[0]
    key = item.assets["data"].href.removeprefix(f"s3://{BUCKET}/")
    content, other_run = (make_hrrr(run=datetime(2025, 4, 2, hour, tzinfo=UTC), lead=0)[1] for hour in (12, 13))
    assert len(content) == len(other_run)
    in_parts = item.clone()
    del in_parts.assets["data"].extra_fields["file:checksum"]
    # The new content: another run's, with the same layout; one byte more; other bytes of the same size.
    for version, written in ((item, other_run), (in_parts, content + b"\0"), (in_parts, bytes(len(content)))):
        put_object(aws.endpoint_url, BUCKET, key, written)
        with pytest.raises(ObjectReadError, match="was written again"):
            kfm.open(version, field=TEMPERATURE)
    gone = item.clone()
    gone.assets["data"].href += "x"
    with pytest.raises(ObjectReadError, match=r"there is no such object; next: .*\.kfm/samples\.env"):
        kfm.open(gone, field=TEMPERATURE)


def test_a_field_without_an_index_is_never_confused_with_another(catalog: Path, aws: EmbeddedCloud) -> None:
    """Cases: an object of several GRIB2 messages, and an object of a single message."""
    item = kfm.latest("hrrr", field=TEMPERATURE).to_dict()
    data = item["assets"]["data"]
    content = make_hrrr(run=datetime(2025, 4, 2, 13, tzinfo=UTC), lead=0)[1]
    single = content[: data["grib:layers"]["TMP 2 m above ground anl"]["byte_size"]]
    asset = {name: value for name, value in data.items() if not name.startswith(("file:", "grib:"))}
    for key, objects, refused in (("three", content, ("RH", TEMPERATURE, None)), ("one", single, ("RH", TEMPERATURE))):
        put_object(aws.endpoint_url, BUCKET, key, objects)
        bare = item | {"assets": {"data": asset | {"href": f"s3://{BUCKET}/{key}"}}}
        assert float(kfm.open(bare, field="TMP").mean()) == pytest.approx(288.0)
        for field in refused:
            with pytest.raises(UnknownNameError, match=r"expected one of .*TMP"):
                kfm.open(bare, field=field)


def test_no_request_follows_the_link_of_a_hostile_item(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setattr("kfm_dagster.storage.s3.S3Bucket.get", lambda *_, **__: pytest.fail("a request"))
    item = kfm.latest("hrrr", field=TEMPERATURE).to_dict()
    hostile = item | {"properties": item["properties"] | {"storage:schemes": {"aws": {"region": "a.evil.example/#"}}}}
    with pytest.raises(ConfigurationError, match=r"not a region of AWS; observed 'a.evil.example/#'"):
        kfm.open(hostile, field=TEMPERATURE)
    for href in ("file:///etc/passwd", "https://evil.example/k", "s3://bucket", "/etc/passwd"):
        item["assets"]["data"]["href"] = href
        with pytest.raises(ConfigurationError, match="not an object of S3"):
            kfm.open(item, field=TEMPERATURE)


def test_a_gzip_bomb_and_an_unreadable_object_give_errors_of_one_line(
    catalog: Path, aws: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_object(aws.endpoint_url, BUCKET, "bomb", gzip.compress(bytes(1_001)))
    monkeypatch.setattr("kfm_dagster.reading.fields.MAX_UNPACKED_BYTES", 1_000)
    item = kfm.latest("hrrr").to_dict()
    for kind, text in (
        ("application/gzip", "more than 1000 bytes"),
        ("application/octet-stream", f"s3://{BUCKET}/bomb"),
    ):
        for engine in ("nexradlevel2", "rasterio"):
            asset = {"href": f"s3://{BUCKET}/bomb", "type": kind, "xarray:open_kwargs": {"engine": engine}}
            with pytest.raises(UnreadableObjectError, match=text) as refusal:
                kfm.open(item | {"assets": {"data": asset}})
            assert "\n" not in str(refusal.value)


def test_a_wrong_argument_is_refused_in_one_line_with_the_valid_values(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarters = kfm.latest("hrrr")
    surface = kfm.latest("hrrr", field=TEMPERATURE)
    monkeypatch.setitem(sys.modules, "xradar", None)
    radar = surface.to_dict() | {
        "assets": {"data": {"href": "s3://b/k", "xarray:open_kwargs": {"engine": "nexradlevel2"}}}
    }
    for call, kind, text in [
        (lambda: kfm.search("hrr"), UnknownNameError, "no Collection hrr; expected one of cfs,"),
        (lambda: kfm.search(time="yesterday"), ConfigurationError, "START/END"),
        (lambda: kfm.search(time=("2025-12-04", "2025-12-03")), ConfigurationError, "ends before it begins"),
        (lambda: kfm.search(bbox=(0, 50, 10, 40)), ConfigurationError, "south below north"),
        (lambda: kfm.search(bbox=(1, 2, 3)), ConfigurationError, "not a box in degrees; observed (1, 2, 3)"),
        (lambda: kfm.search(time=5), ConfigurationError, "not a time; observed 5"),
        (lambda: kfm.open(5), ConfigurationError, "not an Item of this catalog; observed int"),
        (lambda: kfm.open(str(catalog / "hrrr" / "collection.json")), ConfigurationError, "the asset `data`"),
        (lambda: kfm.search(catalog="ftp://host/x"), ConfigurationError, "unknown scheme"),
        (lambda: kfm.search(catalog=str(catalog / "hrrr")), ConfigurationError, "there is no catalog here"),
        (lambda: kfm.search(catalog="http://127.0.0.1:9/x"), DependencyUnavailableError, "cannot be read"),
        (lambda: kfm.open(str(catalog / "x.json")), UnknownNameError, "there is no such Item"),
        (lambda: kfm.open("goes-abi"), UnknownNameError, "the catalog has no Items of goes-abi"),
        (
            lambda: kfm.open(surface),
            UnknownNameError,
            'APCP:surface, GUST:surface, TMP:2 m above ground; next: name a field: field="APCP:surface"',
        ),
        (lambda: kfm.open(surface, field="TMP:20 m above ground"), UnknownNameError, "one of TMP:2 m above ground"),
        (lambda: kfm.open(quarters, field="GUST:surface"), UnknownNameError, "GUST:surface 45 min fcst"),
        (lambda: kfm.open(radar), DependencyUnavailableError, "pip install 'kfm-dagster[read]'"),
    ]:
        with pytest.raises(kind) as refusal:
            call()
        assert isinstance(refusal.value, KfmError)
        assert text in str(refusal.value)
    with pytest.warns(UserWarning, match="similar: hrrr:lead-hours"):
        assert kfm.search("hrrr", **{"hrrr:lead-hour": 1}) == []
    field = kfm.open(quarters, field="GUST surface 45 min fcst")
    assert (field.name, str(field.valid_time.values)[:16]) == ("GUST", "2025-04-02T14:45")
    for item, name in ((surface, "APCP:surface"), (quarters, "GUST:surface 15 min fcst")):
        line = opening(item.to_dict(), item.get_self_href())
        assert line == f'kfm.open("{item.get_self_href()}", field="{name}")'
        assert eval(line, {"kfm": kfm}).equals(kfm.open(item, field=name))


def test_every_code_block_of_the_python_page_runs(objects: Path, ingest: Ingest) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    put_hrrr(objects)
    start = datetime(2025, 4, 2, 17, tzinfo=UTC)
    scan = make_goes_abi(product="ABI-L2-CMIPC", start=start, satellite=16, band=13, drawn=True)
    put(objects, [good("noaa-goes16", *scan)])
    put(objects, [good(RADAR_BUCKET, *make_nexrad_level2(site="KTWX", start=start, drawn=True))])
    ingest()
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"(?s)```python\n(.*?)```", page):
        exec(block, names)
    assert names["item"].id == "hrrr.20250402.conus.t13z.wrfsfcf00"
    assert names["field"].attrs["units"] == "kg/m^2"
    assert names["forecast"].sizes["valid_time"] == 3
    # Objects with `drawn=True`, as in the demo, have a pattern as data, so that a picture is not of one colour.
    assert names["volume"]["sweep_0"]["DBZH"].shape == (720, 1832)
    assert float(names["volume"]["sweep_0"]["DBZH"].max()) > 40
    assert 5 < float(kfm.open("goes-abi", field="CMI").std()) < 50
    content = make_hrrr(run=start, lead=0, drawn=True)[1]
    with rasterio.MemoryFile(content) as file, file.open() as bands:
        assert bands.read(1).std() > 5


REAL = (
    ("noaa-hrrr-bdp-pds/hrrr.20230722/conus/hrrr.t06z.wrfsfcf01.grib2", "1:0:d=2023072206:TMP:surface:1 hour fcst:\n"),
    (
        "noaa-goes17/ABI-L1b-RadC/2019/300/20/OR_ABI-L1b-RadC-M6C06_G17_s20193002001196_e20193002003575_c20193002004003.nc",
        "",
    ),
    ("unidata-nexrad-level2/2016/06/01/KLBB/KLBB20160601_150025_V06", ""),
)
"""The real objects of the notebooks, and the index of the first object, which the folder of real data lacks."""


def test_the_notebooks_open_and_draw_real_objects(
    objects: Path, ingest: Ingest, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("agg")
    monkeypatch.setenv("KFM_FIRST_DAY", "2019-01-01")
    for path, index in REAL:
        bucket, key = path.split("/", 1)
        put(objects, [good(bucket, key, (shared_data / "objects" / path).read_bytes())])
        put(objects, [good(bucket, f"{key}.idx", index.encode())] if index else [])
    ingest()
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        names: dict[str, Any] = {}
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
        picture = io.BytesIO()
        plt.gcf().savefig(picture, dpi=80)
        plt.close("all")
        keep_picture(picture.getvalue(), f"{notebook.stem}.png", tmp_path)
        if notebook.stem == "model-field":
            assert names["kansas"] == pytest.approx(float(names["field"].median()), abs=15)


def test_importing_the_package_loads_neither_dagster_nor_a_client() -> None:
    script = (
        "import sys, kfm_dagster as kfm; kfm.open; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    modules = printed_by(sys.executable, "-c", script).split()
    assert not {"dagster", "sqlalchemy", "psycopg2", "duckdb", "xarray", "pandas"} & set(modules)
    modules = printed_by(sys.executable, "-c", script.replace("kfm.open; ", "")).split()
    assert not {"boto3", "botocore", "obstore", "pystac", "pydantic", "numpy"} & set(modules)
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        kfm.close  # noqa: B018, the attribute
