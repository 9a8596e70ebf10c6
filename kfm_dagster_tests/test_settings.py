"""Settings: each wrong value gives one line that names its variable and contains no password."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.settings import Environment, Settings, environment
from kfm_dagster_tests.no_settings import unset_settings

SECRET = "s3cr3t-word"
ANY_TEXT = {
    "datasets", "home", "storage_url", "catalog_url", "lineage_url", "contracts_dir", "configs_dir", "object_root",
    "sqs_primary_queue", "sqs_dlq_queue", "worker_id", "actor", "alert_urls", "webhook_tokens",
    "image_digest", "energy_grid", "signing_key", "signing_passphrase", "sns_trusted_ca",
    "sensitive_areas", "masking_salt", "console_tokens",
}  # fmt: skip
"""Variables that accept any text; the named resource is checked when it is opened."""
WRONG_DSNS = [f"sqlite:////{SECRET}.db", f"kfm:{SECRET}", f"postgresql://kfm:pa@{SECRET}@host/db"]
WRONG: dict[str, list[str]] = {
    "env": ["production", ""],
    "wal_dsn": [
        f"mysql://kfm:{SECRET}@host/db",
        f"kfm:{SECRET}",
        f"sqlite://{SECRET}",
        # A password must escape these characters; otherwise its rest would be parsed as a host, and shown.
        *(f"postgresql://kfm:pa{mark}{SECRET}@host/db" for mark in "@/?#["),
        f"postgresql://kfm@host:{SECRET}/db",
        f"postgresql://kfm:pa@ss:{SECRET}@host/db",
    ],
    "first_day": ["", "yesterday", "20250101", "2025-02-30", "2025-01-01T00:00"],
    # Dagster reads this URL from the environment itself, so the URL must name the driver.
    "dagster_dsn": [*WRONG_DSNS, "postgresql://kfm@host/db", "postgres://kfm@host/db"],
    "retention_dsn": WRONG_DSNS,
    "stac_api_dsn": WRONG_DSNS,
    "anonymous": ["perhaps"],
    "geoparquet": ["perhaps"],
    "allowed_hosts": ["https://kfm.example.org", "kfm.example.org:3001", "*"],
    "sns_verify": ["on", ""],
    "sns_trusted_url": ["http://sns.example.com", "https://", "http://127.0.0.1@sns.example.com", "ftp://127.0.0.1"],
    "sensor_interval_seconds": ["0", "-1", "soon", "1.5"],
    "tick_budget_seconds": ["0", "forty"],
    "receive_threads": ["0", "many"],
    "max_units_per_run": ["0", "10001", "1e3"],
    "max_units_per_tick": ["0", "all"],
    "max_bytes_per_tick": ["1048575", "1 MiB"],
    "max_in_flight_units": ["-5", ""],
    "feed": ["half", ""],
    "scheduled_listings": ["daily", ""],
    "live_share": ["-0.1", "1.1", "half", "nan"],
    "read_concurrency": ["0", "x"],
    "lease_seconds": ["0", "16m"],
    "retry_backoff_seconds": ["-1", "x"],
    "run_state": [
        "lakefs://repository",
        "lakefs://Repo/main",
        "delta+lakefs://repository/main",
        "gs://bucket",
        "s3://",
        "delta+",
        "delta+file:///x",
        "/a,/b",
    ],
    "catalog_public_url": [
        "ftp://data.example.com",
        "https://",
        f"https://{SECRET}@data.example.com",
        "https://a.example/?x",
    ],
    "dagster_url": ["dagster", "ftp://dagster.example", f"https://{SECRET}@dagster.example", "https://a.example/?x"],
    "console_url": ["console", "ftp://console.example", f"https://{SECRET}@console.example", "https://a.example/?x"],
    "contact": ["someone", "mailto:", "ftp://example.com"],
    "backup_url": ["gs://bucket", "s3://", f"s3://{SECRET}@bucket"],
    "virtual_url": ["gs://bucket", "s3://", "s3:///prefix", f"s3://{SECRET}@bucket"],
    "compute_logs_url": ["logs", "s3://", "gs://bucket", "s3:///prefix", f"s3://{SECRET}@bucket"],
    "celery_broker": ["", "redis", f"amqp://kfm:{SECRET}@host//", f"redis://:{SECRET}@host/first"],
    "worker_usd_per_hour": ["-1", "free", "nan", "inf"],
    "watts_per_core": ["-1", "much", "nan", "inf"],
    "grid_gco2e_per_kwh": ["-1", "green", "nan", "inf"],
    "lakefs_branch": ["/main", "a//b", "../main", "a b", "release/..", "b" * 257],
}


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    unset_settings(monkeypatch)


def test_every_setting_is_in_one_of_the_tables() -> None:
    assert set(Settings.model_fields) == ANY_TEXT | set(WRONG)
    assert all(field.description for field in Settings.model_fields.values())


def test_a_wrong_value_gives_one_line_that_names_its_variable() -> None:
    for name, value in ((name, value) for name, values in WRONG.items() for value in values):
        variable = f"KFM_{name.upper()}"
        with environment({variable: value}), pytest.raises(ConfigurationError) as refusal:
            Settings.load()
        line = str(refusal.value)
        assert line.startswith(f"environment variable {variable} is wrong; observed ")
        assert "\n" not in line
        assert "; expected " in line
        assert line.endswith(f"; next: correct or unset {variable}")
        assert SECRET not in line
        assert refusal.value.__cause__ is None
        assert refusal.value.exit_code is ExitCode.USAGE


def test_every_postgresql_url_has_our_driver() -> None:
    expected = "postgresql+psycopg2://kfm@host/db"
    for scheme in ("postgresql", "postgres", "postgresql+psycopg2"):
        with environment({"KFM_WAL_DSN": f"{scheme}://kfm@host/db"}):
            assert Settings.load().database_url == expected
    with environment({"KFM_DAGSTER_DSN": expected, "KFM_WAL_DSN": "sqlite:////data/kfm.db"}):
        assert Settings.load().dagster_dsn == expected
        assert Settings.load().database_url == "sqlite:////data/kfm.db"


def test_the_branch_must_equal_the_branch_in_the_store_s_address() -> None:
    address = "lakefs://weather/release-v11"
    for run_state, branch, expected in (
        ("", None, "main"),
        ("s3://weather", "release-v11", "release-v11"),
        (address, None, "release-v11"),
        (address, "", "release-v11"),
        (f"{address}/_run_state/", "release-v11", "release-v11"),
        (address, "main", None),
        (address, "release-v12", None),
    ):
        message = f"KFM_LAKEFS_BRANCH is wrong; observed '?{branch}'?; .*release-v11"
        refusal = nullcontext() if expected else pytest.raises(ConfigurationError, match=message)
        named = {} if branch is None else {"KFM_LAKEFS_BRANCH": branch}
        with environment({"KFM_RUN_STATE": run_state, **named}), refusal:
            assert Settings.load().lakefs_branch == expected, (run_state, branch)


def test_a_secret_passed_as_another_type_is_not_shown() -> None:
    for variables in ({"signing_passphrase": 12345678}, {"alert_urls": [f"json://{SECRET}"]}, {"wal_dsn": 12345678}):
        with pytest.raises(ConfigurationError, match="is wrong; observed a value that is not shown;") as refusal:
            Settings.load(**variables)
        assert not {SECRET, "12345678"} & set(str(refusal.value).replace("/", " ").replace("'", " ").split())


def test_every_default_path_is_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFM_HOME", str(tmp_path))
    loaded: Any = Settings.load()
    assert loaded.env is Environment.DEV
    assert loaded.database_url == f"sqlite:///{tmp_path / 'kfm.db'}"
    assert [loaded.storage, loaded.catalog, loaded.lineage] == [
        str(tmp_path / name) for name in ("storage", "catalog", "lineage")
    ]
    defaults = {
        "sqs_primary_queue": "kfm-nodd-primary", "sqs_dlq_queue": "kfm-nodd-dlq", "sensor_interval_seconds": 5,
        "tick_budget_seconds": 40, "max_units_per_tick": 20_000, "max_bytes_per_tick": 1 << 24, "receive_threads": 8,
        "max_units_per_run": 5000, "max_in_flight_units": 20_000, "live_share": 0.5, "read_concurrency": 128,
        "lease_seconds": 960,
    }  # fmt: skip
    assert {name: getattr(loaded, name) for name in defaults} == defaults


def test_the_minimum_and_maximum_of_a_setting_are_accepted() -> None:
    extremes = {"max_units_per_run": (1, 10_000), "live_share": (0, 1), "max_bytes_per_tick": (1 << 20,)}
    for name, values in {**extremes, "lakefs_branch": ("b" * 256,)}.items():
        for value in values:
            assert getattr(Settings.load(**{name: value}), name) == value


def test_a_folder_is_read_by_one_thread_and_a_store_by_the_configured_number(tmp_path: Path) -> None:
    assert Settings(read_concurrency=64).read_threads == 64
    assert Settings(read_concurrency=64, object_root=tmp_path).read_threads == 1


def test_a_misspelt_variable_is_reported_once_with_the_intended_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Only this test has the variable, because its warning is logged once per process.
    for name in ("KFM_CATALOG_ULR", "KFM_SERVICE_HOST", "KFM_TEST_POSTGRES_DSN", "KFMX_ENV"):
        monkeypatch.setenv(name, SECRET)
    for _ in range(2):
        Settings.load()
    assert caplog.messages == ["KFM_CATALOG_ULR is not a setting and has no effect; did you mean KFM_CATALOG_URL?"]
