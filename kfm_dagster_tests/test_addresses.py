"""What is shown of an address opens nothing, wherever the secret stands in it."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kfm_dagster.addresses import shown, without_secrets
from kfm_dagster.cli.main import main
from kfm_dagster.defs.resources import WalResource
from kfm_dagster.errors import ConfigurationError, DatabaseUnavailableError
from kfm_dagster.settings import Settings, environment
from kfm_dagster.storage.database import Database

pytestmark = pytest.mark.clause("SEC-07")

SECRET = "tr0ub4dor"
PLACES = [
    f"postgresql+psycopg2://kfm:{SECRET}@127.0.0.1:1/kfm",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?password={SECRET}",
    f"postgresql+psycopg2://127.0.0.1:1/kfm?user=kfm&sslmode=prefer&sslpassword={SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?passfile=/{SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?PASSWORD={SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?options=-c%20x.y%3D{SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?not_an_option={SECRET}",
    f"postgresql+psycopg2://kfm@127.0.0.1:1/kfm?sslmode=prefer#{SECRET}",
]


def test_an_address_is_shown_without_what_opens_it() -> None:
    for address, expected in (
        ("postgresql+psycopg2://u:p@h:5432/d", "postgresql+psycopg2://u:***@h:5432/d"),
        (
            "postgresql+psycopg2://u@h/d?host=/run/pg&password=p",
            "postgresql+psycopg2://u@h/d?host=/run/pg&password=***",
        ),
        ("postgresql://h/d?sslpassword=p&sslmode=require&x", "postgresql://h/d?sslpassword=***&sslmode=require&x***"),
        ("delta+s3://k:p@bucket/prefix", "delta+s3://k:***@bucket/prefix"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("sqlite:////data/kfm.db", "sqlite:////data/kfm.db"),
        ("/data/a?b@c:d", "/data/a?b@c:d"),
        ("http://[::1", "***"),
    ):
        assert shown(address) == expected


@given(
    secret=st.text(st.characters(codec="utf-8"), min_size=6, max_size=30),
    name=st.sampled_from(["password", "sslpassword", "passfile", "sslkey", "whatever"]),
)
@example(secret="a@b:c/d?e", name="password")
def test_no_secret_is_shown_whatever_its_characters(secret: str, name: str) -> None:
    encoded = quote(secret, safe="")
    for address in (
        f"postgresql+psycopg2://kfm:{encoded}@host/db",
        f"postgresql+psycopg2://kfm@host/db?sslmode=require&{name}={encoded}&application_name=kfm",
    ):
        said = f"could not open {secret!s} ({encoded}) of {address}"
        for text in (shown(address), without_secrets(said, address)):
            assert encoded not in text.removeprefix("could not open").replace("kfm", "")
        assert f" {secret} (" not in without_secrets(said, address)


@pytest.mark.parametrize("dsn", PLACES)
def test_a_database_that_does_not_answer_shows_none(
    dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(DatabaseUnavailableError) as refused:
        Database.open(dsn)
    monkeypatch.setenv("KFM_WAL_DSN", dsn)
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "home"))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit):
        main(["wal", "list", "--json"])
    texts = [
        str(refused.value),
        repr(refused.value),
        out.getvalue(),
        err.getvalue(),
        repr(Settings.load()),
        caplog.text,
    ]
    assert "127.0.0.1" in texts[0]
    assert [text for text in texts if SECRET in text] == []


def test_credentials_in_the_address_of_a_store_are_refused_unseen() -> None:
    addresses = (f"s3://key:{SECRET}@bucket/x", f"s3://bucket/x?secret_access_key={SECRET}")
    names = ("KFM_RUN_STATE", "KFM_STORAGE_URL", "KFM_CATALOG_URL", "KFM_LINEAGE_URL")
    of_run_state = [form for address in addresses for form in (f"delta+{address}", f"s3://a,{address}")]
    for name, value in (*product(names, addresses), *product(names[:1], of_run_state)):
        refusal = rf"{name} is wrong; observed a value that is not shown"
        with environment({name: value}), pytest.raises(ConfigurationError, match=refusal) as refused:
            Settings.load()
        assert SECRET not in str(refused.value)


def test_dagster_shows_no_dsn_of_the_resource_and_refuses_a_wrong_one_unseen() -> None:
    resource = WalResource(dsn=PLACES[1])
    assert SECRET not in repr(resource)
    schema = resource.get_resource_definition().config_schema.as_field().config_type
    assert schema.fields["dsn"].is_secret
    with pytest.raises(ConfigurationError, match="not shown") as refused:
        WalResource(dsn=f"mysql://kfm:{SECRET}@host/db").settings()
    assert SECRET not in str(refused.value)
