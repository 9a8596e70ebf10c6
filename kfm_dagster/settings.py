"""Settings: the model of every environment variable of the package, with descriptions.

Belongs here: names, types, defaults and their reasons. Does not belong here: anything that opens a connection or a
file. Nothing is read at import; call `Settings.load()`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from difflib import get_close_matches
from enum import StrEnum, unique
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from kfm_dagster.addresses import LAKEFS
from kfm_dagster.errors import ConfigurationError, expectation

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PREFIX = "KFM_"
MISSPELT = 0.8
"""Least similarity (difflib's ratio) of an unknown name to a setting that it misspells: one letter in five differs."""

_LOG = logging.getLogger(__name__)
_logged: set[str] = set()

_PAGE = r"^(https?://[^/\s@?#]+[^\s@?#]*)?$"
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""This machine's names, which are the only hosts that may be reached without TLS."""
WATTS_PER_CORE = 3.5
"""Watts of a vCPU at full load, averaged over AWS's processors (Cloud Carbon Footprint, methodology, "Compute")."""
GCO2E_PER_KWH = 445.0
"""Grams of CO2e per kWh, the world's average in 2024 (IEA, Electricity 2025, "Emissions")."""


@unique
class Environment(StrEnum):
    """The environment of this process; guards are stricter towards prod."""

    DEV = "dev"
    STAGE = "stage"
    PROD = "prod"


@unique
class FeedKind(StrEnum):
    """The part of each dataset that a deployment's queue delivers."""

    WHOLE = "whole"
    """Every object that the provider announces, so that an hour without objects is a gap."""
    SAMPLE = "sample"
    """A part of these objects. The expected number is unknown, so gate G6 does not apply."""


class Settings(BaseModel):
    """Every environment variable that `kfm_dagster` reads (prefix `KFM_`)."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_default=True)

    env: Environment = Field(Environment.DEV, description="dev, stage or prod.")
    datasets: str = Field(
        "",
        description="Datasets that the deployment follows, separated by blanks or commas; messages of other datasets "
        "are ignored. Default: all.",
    )
    home: Path = Field(Path(".kfm"), description="Data root: the folder in which the paths below are by default.")
    # A DSN may hold a password, and a repr ends up in logs and tracebacks.
    wal_dsn: str = Field("", repr=False, description="Ledger database; default sqlite:///$KFM_HOME/kfm.db.")
    dagster_dsn: str = Field(
        "",
        repr=False,
        description="PostgreSQL database of Dagster's own storage, postgresql+psycopg2://...; it can be that of "
        "KFM_WAL_DSN. `kfm init` writes a dagster.yaml that names this variable. Default: SQLite files below "
        "DAGSTER_HOME.",
    )
    retention_dsn: str = Field(
        "",
        repr=False,
        description="DSN by which retention connects to the database of KFM_WAL_DSN, with its own role (kfm init "
        "--retention-role). Default: KFM_WAL_DSN.",
    )
    backup_url: str = Field(
        "",
        description="Where dumps of the databases are put, folder or s3://bucket/prefix. kfm doctor checks the age of "
        "the newest dump (docs/backup.md). Default: the age is not checked.",
    )
    storage_url: str = Field("", description="Landing zone and artifacts, folder or s3://; default $KFM_HOME/storage.")
    catalog_url: str = Field("", description="STAC catalog, folder or s3://; default $KFM_HOME/catalog.")
    catalog_public_url: str = Field(
        "",
        pattern=_PAGE,
        description="Address at which people read the catalog, https://HOST/PATH; DCAT links the catalog's files "
        "there. Default: KFM_CATALOG_URL.",
    )
    contact: str = Field(
        "",
        pattern=r"^(mailto:[^\s@]+@[^\s@]+|https?://\S+)?$",
        description="Contact for readers of the catalog, mailto:ADDRESS or https://PAGE; DCAT names it. Default: each "
        "dataset's producer.",
    )
    dagster_url: str = Field(
        "",
        pattern=_PAGE,
        description="Address of the Dagster UI for people, https://HOST. If set, the console links each run to its "
        "page there. Default: no links.",
    )
    console_url: str = Field(
        "",
        pattern=_PAGE,
        description="Address of the console (kfm console) for people, https://HOST. If set, the Dagster UI links each "
        "failing unit to its page there. Default: no links.",
    )
    allowed_hosts: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._ -]*$",
        description="Further host names, separated by blanks, under which browsers and monitors reach the Dagster UI "
        "and the console. Always accepted: localhost, IP addresses, and the hosts of KFM_DAGSTER_URL and "
        "KFM_CONSOLE_URL. Default: none.",
    )
    geoparquet: bool = Field(
        True,  # noqa: FBT003
        description="Publish the Items of each day as GeoParquet, too, beside the catalog (docs/stac.md).",
    )
    stac_api_dsn: str = Field(
        "",
        repr=False,
        description="PostgreSQL database of a STAC API (pgstac) that shows the catalog's Items, too. Default: none.",
    )
    lineage_url: str = Field("", description="OpenLineage and PROV-O files; default $KFM_HOME/lineage.")
    virtual_url: str = Field(
        "",
        description="Virtual Zarr stores of the datasets whose contracts ask for them, folder or s3://bucket/prefix; "
        "default: none (docs/virtual-zarr.md).",
    )
    compute_logs_url: str = Field(
        "",
        description="Where the output of Dagster's steps is stored, s3://bucket/prefix; `kfm init` writes it into "
        "dagster.yaml. Default: files below DAGSTER_HOME.",
    )
    celery_broker: SecretStr | None = Field(
        None,
        description="Redis of Celery, redis://HOST:6379/0 (extra `celery`); Celery's workers then execute the steps of "
        "runs (docs/deploy.md). Default: each run executes its own steps.",
    )
    first_day: date | None = Field(
        None,
        description="First day (UTC, YYYY-MM-DD) of the partitions of a new database. A day before the first day of "
        "every contract is refused. The database stores it, and only a backfill of earlier days changes it. "
        "Default: 1,000 days back.",
    )
    contracts_dir: Path | None = Field(None, description="Folder with further dataset contracts (YAML).")
    configs_dir: Path | None = Field(
        None,
        description="Folder with the pipeline card, state_machine.yaml, replay_plan.yaml, alerts.yaml, "
        "announcements.yaml, retention.yaml and registry-exceptions.yaml; default: configs/.",
    )
    object_root: Path | None = Field(
        None, description="Read objects from ROOT/<bucket>/<key> instead of the provider's object store."
    )
    anonymous: bool = Field(False, description="Read buckets without credentials (NODD buckets are public).")  # noqa: FBT003
    sqs_primary_queue: str = Field("kfm-nodd-primary", description="Name of the queue that the sensor receives from.")
    sqs_dlq_queue: str = Field("kfm-nodd-dlq", description="Name of the dead-letter queue of KFM_SQS_PRIMARY_QUEUE.")
    sns_verify: Literal["require", "off"] | None = Field(
        None,
        description="require: only messages signed by their SNS topic are accepted. off: signatures are not checked; "
        "raw delivery, which has none, needs this. Default: off outside prod if AWS_ENDPOINT_URL is not AWS's, else "
        "require.",
    )
    sns_trusted_url: str = Field(
        "",
        description="Additional URL prefix of signing certificates, such as the embedded cloud's; AWS's hosts are "
        "always allowed. Needs KFM_SNS_TRUSTED_CA.",
    )
    sns_trusted_ca: Path | None = Field(
        None,
        description="PEM file of the authority that is trusted for certificates below KFM_SNS_TRUSTED_URL, and only "
        "for these.",
    )
    sensor_interval_seconds: PositiveInt = Field(5, description="Pause between two ticks of the sensors.")
    tick_budget_seconds: PositiveInt = Field(
        40, description="Seconds after which a sensor stops receiving; Dagster ends a tick after 60 s."
    )
    max_units_per_tick: PositiveInt = Field(
        20000, description="The sensor stops receiving once the messages of a tick announce this number of units."
    )
    max_bytes_per_tick: int = Field(
        16 * 1024 * 1024,
        ge=1024 * 1024,
        description="The sensor stops receiving once the messages of a tick have this number of bytes; an SQS message "
        "has at most 1 MiB.",
    )
    receive_threads: PositiveInt = Field(8, description="Parallel receive calls; each returns at most 10 messages.")
    max_units_per_run: int = Field(
        5000,
        ge=1,
        le=10_000,
        description="Units that one run claims per dataset; a unit takes about 50 KB of memory, a unit of HRRR 150 KB.",
    )
    feed: FeedKind = Field(
        FeedKind.WHOLE,
        description="whole or sample: whether the queue delivers all objects of a dataset or a part of them. Only for "
        "whole feeds, gate G6 compares a day with the number of objects that the contract expects.",
    )
    scheduled_listings: bool = Field(
        default=True, description="Whether buckets are listed by the contracts' schedules (storage.scheduled_listing)."
    )
    max_in_flight_units: PositiveInt = Field(
        20000, description="The sensor stops receiving while more live units than this are pending or in progress."
    )
    live_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of in-flight units and of run slots that bulk work (backfills, replays) can never take; "
        "at 1, no bulk work is admitted.",
    )
    read_concurrency: PositiveInt = Field(
        128,
        description="Objects that one run reads at the same time from a bucket; from a folder, it reads one by one.",
    )
    lease_seconds: PositiveInt = Field(
        960,
        description="Duration of a run's lease. A record in progress is recovered if its run has not renewed the lease "
        "for this time (default: visibility timeout 900 s + 60 s margin).",
    )
    retry_backoff_seconds: float | None = Field(
        None, ge=0, description="Overrides the base backoff of every contract (demo and tests)."
    )
    run_state: str = Field(
        "",
        repr=False,
        description="The run-state store. Empty: the database. A folder or s3://bucket/prefix: objects there (lakeFS: "
        "lakefs://repository/branch). delta+FOLDER or delta+s3://bucket/prefix: a Delta table.",
    )
    lakefs_branch: str = Field(
        "",
        validate_default=True,
        pattern=r"^([\w-][\w.-]*(/[\w-][\w.-]*)*)?$",
        max_length=256,
        description="Branch written into each record of run-state. Outside the database, the path of each record "
        "contains the branch, too. Default: the branch of KFM_RUN_STATE, or main.",
    )
    energy_grid: str = Field(
        "",
        description="Country of the grid, ISO 3166-1 alpha-3, or USA/state. If set, codecarbon (extra `energy`) "
        "measures energy and CO2e of each step. Default: estimates from its CPU seconds and the next two settings.",
    )
    watts_per_core: float = Field(
        WATTS_PER_CORE, ge=0, allow_inf_nan=False, description="Power of a busy core, if KFM_ENERGY_GRID is unset."
    )
    grid_gco2e_per_kwh: float = Field(
        GCO2E_PER_KWH, ge=0, allow_inf_nan=False, description="Grams of CO2e per kWh, if KFM_ENERGY_GRID is unset."
    )
    worker_usd_per_hour: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Price of an hour of the machine that executes the steps. If set, each step has a cost.",
    )
    sensitive_areas: Path | None = Field(
        None,
        description="GeoJSON FeatureCollection of areas, for every dataset: a footprint that meets an area is "
        "generalised by the area's rule (docs/governance.md).",
    )
    masking_salt: SecretStr | None = Field(
        None, description="Secret of maskings by displacement (donut), 16 bytes or more. Never change it."
    )
    image_digest: str = Field("", description="Digest of the container image, part of the code's fingerprint.")
    signing_key: Path | None = Field(
        None,
        description="OpenPGP secret key that signs release bundles, armoured or binary; default: a key in "
        "$KFM_HOME/keys, created on first use.",
    )
    signing_passphrase: SecretStr | None = Field(None, description="Passphrase of KFM_SIGNING_KEY, if it has one.")
    alert_urls: SecretStr | None = Field(
        None,
        description="URLs of apprise (appriseit.com/services) to which alerts are sent, separated by blanks. "
        "CHANNEL=URL serves one channel of alerts.yaml, a bare URL serves all.",
    )
    webhook_tokens: SecretStr | None = Field(
        None,
        description="Bearer tokens of announcements by webhook: NAME=TOKEN, separated by blanks; the names are those "
        "of announcements.yaml.",
    )
    console_tokens: SecretStr | None = Field(
        None,
        description="Tokens for decisions in the console (docs/console.md): NAME=TOKEN, separated by blanks; the "
        "governance log records NAME. Default: the console only reads.",
    )
    actor: str = Field("", description="Actor of decisions on the command line (governance log); default: the OS user.")
    worker_id: str = Field(
        "local",
        description="Logical worker identity in the ledger, the same in every process of a run; never a host name.",
    )

    def __init__(self, **values: Any) -> None:
        variables = {name: f"{PREFIX}{name.upper()}" for name in type(self).model_fields}
        stored = {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}
        super().__init__(**(stored | values))

    @field_validator("wal_dsn", "dagster_dsn", "stac_api_dsn", "retention_dsn")
    @classmethod
    def _one_postgres_driver(cls, value: str, info: ValidationInfo) -> str:
        # SQLAlchemy 2.1 reads a bare postgresql:// as psycopg 3; with psycopg 3, dagster-postgres fails on NOTIFY.
        for bare in ("postgresql://", "postgres://"):
            # Not KFM_DAGSTER_DSN: dagster.yaml names this variable, so Dagster reads it unchanged.
            if value.startswith(bare) and info.field_name != "dagster_dsn":
                value = "postgresql+psycopg2://" + value.removeprefix(bare)
        is_file = info.field_name == "wal_dsn" and value.startswith("sqlite:///")
        if value and not is_file and not value.startswith("postgresql+psycopg2://"):
            also = "sqlite:///FILE or " if info.field_name == "wal_dsn" else ""
            raise ValueError(f"{also}postgresql+psycopg2://USER@HOST/DATABASE")
        if not is_file and _cannot_be_split(value):
            raise ValueError(
                "postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE, with @ / ? # of a password percent-encoded"
            )
        return value

    @field_validator("first_day", mode="before")
    @classmethod
    def _only_iso_dates(cls, value: object) -> object:
        # pydantic reads a number as seconds of a time: 20250101 would be a day of 1970.
        if isinstance(value, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}", value, re.ASCII) is None:
            raise ValueError("YYYY-MM-DD")
        return value

    @field_validator("sns_trusted_url")
    @classmethod
    def _secure_or_loopback(cls, value: str) -> str:
        parts = urlsplit(value)
        secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS)
        if value and (not secure or not parts.hostname or "@" in value or parts.query or parts.fragment):
            raise ValueError("https://HOST, or http:// of a loopback address, without user, query and fragment")
        return value

    @field_validator("celery_broker")
    @classmethod
    def _a_redis(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch(r"rediss?://[^/?#\s]+(/\d+)?(\?[^#\s]+)?", value.get_secret_value()):
            raise ValueError("redis://HOST:PORT/NUMBER, or rediss://HOST:PORT/NUMBER?ssl_cert_reqs=required for TLS")
        return value

    @field_validator("backup_url", "virtual_url", "compute_logs_url")
    @classmethod
    def _a_folder_or_bucket(cls, value: str, info: ValidationInfo) -> str:
        may_be_folder = info.field_name != "compute_logs_url" and "://" not in value
        if value and not may_be_folder and not re.fullmatch(r"s3://[^/]+(/.*)?", value):
            raise ValueError(
                "s3://bucket/prefix" if "logs" in str(info.field_name) else "a folder or s3://bucket/prefix"
            )
        return value

    @field_validator(
        "backup_url", "run_state", "storage_url", "catalog_url", "lineage_url", "virtual_url", "compute_logs_url"
    )
    @classmethod
    def _no_credentials_in_an_address(cls, value: str) -> str:
        # Stores read no credentials from an address, and addresses are in records, artifacts and Dagster's metadata.
        if _may_hold_a_secret(value):
            raise ValueError("an address without user, query or fragment; credentials belong into the AWS_* variables")
        return value

    @field_validator("run_state")
    @classmethod
    def _one_run_state_store(cls, value: str) -> str:
        url = value.removeprefix("delta+")
        scheme, separator, rest = url.partition("://")
        if any(mark in value for mark in (",", ";", "\n")) or "delta+" in url or "://" in rest:
            raise ValueError("one store per environment")
        if LAKEFS.fullmatch(value):
            return value
        if (separator and (scheme != "s3" or not rest.strip("/"))) or value == "delta+":
            raise ValueError(
                "a folder or s3://bucket/prefix, with delta+ before it for a Delta table, or "
                "lakefs://REPOSITORY/BRANCH with AWS_ENDPOINT_URL at its S3 gateway"
            )
        return value

    @field_validator("lakefs_branch")
    @classmethod
    def _the_one_branch(cls, value: str, info: ValidationInfo) -> str:
        named = LAKEFS.fullmatch(info.data.get("run_state", ""))
        if named and value not in ("", named["branch"]):
            raise ValueError(f"the branch of KFM_RUN_STATE, {named['branch']}; or leave it out")
        return value or (named["branch"] if named else "main")

    @classmethod
    def load(cls, **values: Any) -> Self:
        """Read the environment; `values` override it. Raises ConfigurationError with all faults.

        A misspelt variable has no effect; one warning names the setting that was probably meant. Other unknown
        variables are ignored: Kubernetes sets some for every service (KFM_SERVICE_HOST).
        """
        _log_misspelt(cls.model_fields)
        try:
            return cls(**values)
        except ValidationError as error:
            raise cls._refusal(error.errors(), values) from None

    @classmethod
    def current(cls, **values: str) -> Settings:
        """Return `load()`, cached by environment: loading takes 10 ms, too long for each step."""
        return _current(frozenset(os.environ.items()), tuple(values.items()))

    @classmethod
    def _refusal(cls, errors: Sequence[ErrorDetails], values: Mapping[str, Any]) -> ConfigurationError:
        faults = []
        for error in errors:
            setting, field = "_".join(str(part) for part in error["loc"]), str(error["loc"][0])
            hidden = (
                field in {"wal_dsn", "dagster_dsn", "stac_api_dsn", "retention_dsn"}  # may hold a password
                or SecretStr in get_args(cls.model_fields[field].annotation)
                or _may_hold_a_secret(str(error["input"]))
            )
            name = setting if setting in values else f"KFM_{setting.upper()}"
            observed = "a value that is not shown" if hidden else repr(error["input"])
            faults.append((name, observed, expectation(error["msg"])))
        if len(faults) > 1:
            return ConfigurationError(
                f"{len(faults)} settings are wrong",
                observed=tuple(f"{name} {observed} (expected {expected})" for name, observed, expected in faults),
                next_step="correct or unset each of them",
            )
        [(name, observed, expected)] = faults
        return ConfigurationError(
            f"{'setting' if name in values else 'environment variable'} {name} is wrong",
            observed=observed,
            expected=expected,
            next_step="correct it" if name in values else f"correct or unset {name}",
        )

    @property
    def verifies_signatures(self) -> bool:
        """Whether messages must be signed.

        KFM_SNS_VERIFY decides; if it is unset, messages must be signed in prod and on AWS's queues. The queue's
        endpoint shows whether a queue is AWS's; the topic's name does not, as in the embedded cloud it is NOAA's, too.
        """
        if self.sns_verify is not None:
            return self.sns_verify == "require"
        endpoint = os.environ.get("AWS_ENDPOINT_URL_SQS") or os.environ.get("AWS_ENDPOINT_URL")
        ignored = os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
        if self.env is Environment.PROD or ignored or not endpoint:
            return True
        host = urlsplit(endpoint).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    @property
    def read_threads(self) -> int:
        """Threads that read objects; 1 for a folder, where reads do not wait."""
        return self.read_concurrency if self.object_root is None else 1

    @property
    def max_bulk_in_flight_units(self) -> int:
        """Limit of bulk units in flight; a backfill lists its next day only below this limit."""
        return self._bulk_part(self.max_in_flight_units)

    def bulk_runs(self, run_slots: int | None) -> int:
        """Return the limit of active bulk runs for Dagster's limit of runs (None: no limit)."""
        by_units = self._bulk_part(self.max_in_flight_units / self.max_units_per_run)
        return by_units if run_slots is None else min(by_units, self._bulk_part(run_slots))

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL of the database."""
        return self.wal_dsn or f"sqlite:///{self.home.absolute() / 'kfm.db'}"

    @property
    def retention_url(self) -> str:
        """SQLAlchemy URL of retention's connection to the database."""
        return self.retention_dsn or self.database_url

    @property
    def dagster_home(self) -> Path:
        """DAGSTER_HOME of the deployment, as `kfm init` chooses it."""
        return Path(os.environ.get("DAGSTER_HOME") or self.home / "dagster").absolute()

    @property
    def storage(self) -> str:
        """URL or folder of landing zone and artifacts."""
        return self.storage_url or str(self.home.absolute() / "storage")

    @property
    def followed(self) -> list[str]:
        """Ids of the datasets that the deployment follows; empty for all."""
        return self.datasets.replace(",", " ").split()

    @property
    def catalog(self) -> str:
        """URL or folder of the STAC catalog."""
        return self.catalog_url or str(self.home.absolute() / "catalog")

    @property
    def virtual_root(self) -> str:
        """Absolute address of the virtual stores; empty if there are none."""
        is_folder = self.virtual_url and "://" not in self.virtual_url
        return str(Path(self.virtual_url).absolute()) if is_folder else self.virtual_url.rstrip("/")

    @property
    def lineage(self) -> str:
        """URL or folder of the lineage files."""
        return self.lineage_url or str(self.home.absolute() / "lineage")

    def _bulk_part(self, whole: float) -> int:
        """Return the bulk share of a whole; at least 1, unless the live share is 1."""
        # At least 1, because each lane must be served at some time. The thousandth only corrects float rounding.
        return 0 if self.live_share == 1 else max(1, int(whole * (1 - self.live_share) + 0.001))


@lru_cache(maxsize=4)
def _current(_environment: frozenset[tuple[str, str]], values: tuple[tuple[str, str], ...]) -> Settings:
    return Settings.load(**dict(values))


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block, for child processes, Dagster and AWS clients."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _may_hold_a_secret(value: str) -> bool:
    """Return whether a text is a URL with more than a scheme, a host and a path."""
    return "://" in value and any(mark in value for mark in "@?#")


def _log_misspelt(settings: Iterable[str]) -> None:
    known = {f"{PREFIX}{name.upper()}" for name in settings}
    unknown = {name for name in os.environ if name.startswith(PREFIX)} - known - _logged
    _logged.update(unknown)
    for name in sorted(unknown):
        for meant in get_close_matches(name, known, n=1, cutoff=MISSPELT):
            _LOG.warning("%s is not a setting and has no effect; did you mean %s?", name, meant)


def _cannot_be_split(url: str) -> bool:
    """Return whether a URL's password would be read, and shown, as part of its host or port."""
    try:
        parts = urlsplit(url)
        return parts.netloc.count("@") > 1 or (parts.port or 0) < 0
    except ValueError:
        return True
