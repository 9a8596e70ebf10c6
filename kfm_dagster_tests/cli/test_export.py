"""`kfm export`: files where they are asked for, nothing foreign overwritten, nothing made where there is nothing."""

from __future__ import annotations

import json
from pathlib import Path

from kfm_dagster.errors import ExitCode
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster_tests.commands import Call, state_of

FILES = {"dcat": ["catalog.jsonld"], "graph": ["schema.cypher", "graph.cypher", "nodes.csv", "edges.csv"]}

Ledger = dict[str, NoddWalRecord]


def test_an_export_goes_below_the_home_or_where_it_is_told_and_may_be_repeated(
    call: Call, ledger: Ledger, home: Path, tmp_path: Path
) -> None:
    database = (home / "kfm.db").read_bytes()
    for kind, names in FILES.items():
        there = tmp_path / kind
        for folder, options in ((home / "exports" / kind, []), (there, ["--out", str(there)])):
            for _ in range(2):
                answer = call("export", kind, *options, "--json")
                assert answer.code == ExitCode.DONE, answer.err
                assert json.loads(answer.out)["files"] == [str(folder / name) for name in names]
                assert sorted(path.name for path in folder.iterdir()) == sorted(names)
        assert call("export", kind).out.startswith(str(home / "exports" / kind / names[0]))
    assert (home / "kfm.db").read_bytes() == database


def test_a_file_that_no_export_wrote_is_kept_and_one_in_the_place_of_the_folder(
    call: Call, ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file\n")
    for kind, names in FILES.items():
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_text("mine\n")
        before = state_of(tmp_path)
        refusals = {name: (ExitCode.REFUSED, f"{name}/{name}") for name in names}
        for out, (code, said) in {**refusals, "file": (ExitCode.USAGE, "the export cannot be written")}.items():
            answer = call("export", kind, "--out", out)
            assert (answer.code, answer.out, answer.err.count("\n")) == (code, "", 1), (kind, out)
            assert said in answer.err
            assert state_of(tmp_path) == before
