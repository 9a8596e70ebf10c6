"""`retention.yaml`: what is shipped removes nothing, and a wrong file is one line with file, line and reason."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from kfm_dagster.configs import CardError, own_folder
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.retention import RETENTION, RetentionKind, RetentionPolicy
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster_tests.schemas import json_schema

ROOT = Path(__file__).resolve().parents[2]
HEAD = 'version: "1.0.0"\nkeep:\n'
LEAST = {"dagster_runs": "1d", "landing": "15d", "artifacts": "8d", "evidence_samples": "1d"}


def loaded(folder: Path, text: str) -> RetentionPolicy:
    (folder / RETENTION).write_text(text, encoding="utf-8")
    return RetentionPolicy.load(folder)


def test_what_is_shipped_keeps_everything_and_shows_how(tmp_path: Path) -> None:
    text = (own_folder() / RETENTION).read_text(encoding="utf-8")
    assert RetentionPolicy.load(None).ages == {}
    assert RetentionPolicy.load(tmp_path).ages == {}  # a folder without the file
    shown = text.replace("keep: {}", "keep:").replace("\n#  ", "\n  ")
    assert list(loaded(tmp_path, shown).ages) == list(RetentionKind)


def test_the_least_age_of_a_kind_is_taken_and_less_is_refused(tmp_path: Path) -> None:
    for kind, least in LEAST.items():
        days = int(least.removesuffix("d"))
        assert loaded(tmp_path, f"{HEAD}  {kind}: {least}\n").ages == {RetentionKind(kind): timedelta(days=days)}
        with pytest.raises(CardError, match=rf"retention.yaml line 3: keep.{kind} is wrong.*expected {least} at least"):
            loaded(tmp_path, f"{HEAD}  {kind}: {days * 86_400 - 1}s\n")


def test_an_unknown_kind_and_a_bad_duration_are_one_line(tmp_path: Path) -> None:
    for line, said in (
        ("ledger: 30d", f"unknown key 'ledger'; expected one of {', '.join(RetentionKind)}"),
        ("landings: 30d", "unknown key 'landings'; expected landing"),
        ("landing: 30", "a number and one of ms, s, m, h, d, such as 10m"),
        ("landing: a month", "a number and one of ms, s, m, h, d, such as 10m"),
        ("landing: 4000d", "no more than 3650d"),
    ):
        with pytest.raises(CardError) as refused:
            loaded(tmp_path, f"{HEAD}  {line}\n")
        assert f"{tmp_path / RETENTION} line 3: keep." in str(refused.value)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


def test_no_deployment_starts_with_a_wrong_policy(tmp_path: Path) -> None:
    for name, content in Card.load().files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / RETENTION).write_text(f"{HEAD}  landing: 1d\n", encoding="utf-8")
    with pytest.raises(CardError, match="15d at least: SQS gives a message again"):
        Configuration.load(Settings(configs_dir=tmp_path))


def test_the_published_schema_is_the_model_and_takes_what_is_shipped() -> None:
    schema = json.loads((ROOT / "docs" / "spec" / "retention.schema.json").read_text(encoding="utf-8"))
    assert schema == json_schema(RetentionPolicy, urn="kfm:nodd:retention:v1")
    validator = jsonschema_rs.Draft202012Validator(schema)
    validator.validate(yaml.safe_load((own_folder() / RETENTION).read_text(encoding="utf-8")))
    assert not validator.is_valid({"version": "1.0.0", "keep": {"ledger": "30d"}})
