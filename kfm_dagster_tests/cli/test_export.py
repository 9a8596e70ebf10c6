"""`kfm export`: files where they are asked for, nothing foreign overwritten, nothing made where there is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfm_dagster.errors import ExitCode
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster_tests.commands import Call, state_of

FILES = {"dcat": ["catalog.jsonld"], "graph": ["schema.cypher", "graph.cypher", "nodes.csv", "edges.csv"]}

Ledger = dict[str, NoddWalRecord]


@pytest.mark.parametrize("kind", FILES)
def test_an_export_goes_below_the_home_or_where_it_is_told_and_may_be_repeated(
    kind: str,
    call: Call,
    ledger: Ledger,
    home: Path,
    tmp_path: Path,
) -> None:
    database = (home / "kfm.db").read_bytes()
    for folder, options in ((home / "exports" / kind, []), (tmp_path / "there", ["--out", str(tmp_path / "there")])):
        for _ in range(2):
            answer = call("export", kind, *options, "--json")
            assert answer.code == ExitCode.DONE, answer.err
            assert json.loads(answer.out)["files"] == [str(folder / name) for name in FILES[kind]]
            assert sorted(path.name for path in folder.iterdir()) == sorted(FILES[kind])
    assert call("export", kind).out.startswith(str(home / "exports" / kind / FILES[kind][0]))
    assert (home / "kfm.db").read_bytes() == database


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FILES.items() for name in names])
def test_a_file_that_no_export_wrote_is_kept(kind: str, name: str, call: Call, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / name).write_text("mine\n")
    before = state_of(tmp_path)
    answer = call("export", kind, "--out", "there")
    assert (answer.code, answer.out, answer.err.count("\n")) == (ExitCode.REFUSED, "", 1)
    assert f"there/{name}" in answer.err
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("kind", FILES)
def test_what_cannot_be_exported_is_one_line(kind: str, call: Call, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("a file\n")
    before = state_of(tmp_path)
    answer = call("export", kind, "--out", "there")
    assert (answer.code, answer.out, answer.err.count("\n")) == (ExitCode.USAGE, "", 1)
    assert "the export cannot be written" in answer.err
    assert state_of(tmp_path) == before
