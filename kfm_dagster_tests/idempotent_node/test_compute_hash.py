"""The content hash against the published algorithm, and the changes that affect it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.idempotent_node.compute_hash import code_fingerprint, compute_content_hash, files_digest
from kfm_dagster_tests.programs import git

fingerprint = code_fingerprint.__wrapped__
"""The fingerprint as a new process computes it; a process keeps its first one."""
INPUTS = [
    {"uri": "s3://b/two", "size": 20, "etag": "e2"},
    {"uri": "s3://b/one", "size": 10, "checksum": "c1"},
]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.clause("IEN-01")
def test_the_hash_is_the_sha256_of_the_published_text() -> None:
    for inputs, params, image, text in [
        ([], {}, None, '{"code": {"lockfile": "L", "sha": "S"}, "inputs": [], "params": {}}'),
        (
            INPUTS,
            {"window": "PT1H", "bands": [13, 2], "aoi": None},
            None,
            '{"code": {"lockfile": "L", "sha": "S"}, "inputs": ['  # noqa: ISC004, one text
            '{"checksum": "c1", "size": 10, "uri": "s3://b/one"}, {"etag": "e2", "size": 20, "uri": "s3://b/two"}], '
            '"params": {"aoi": null, "bands": [13, 2], "window": "PT1H"}}',
        ),
        (
            [{"uri": "s3://b/\u00e9", "size": 0}],
            {"f": 0.5},
            "sha256:1",
            '{"code": {"image": "sha256:1", "lockfile": "L", "sha": "S"}, "inputs": '  # noqa: ISC004, one text
            '[{"size": 0, "uri": "s3://b/\\u00e9"}], "params": {"f": 0.5}}',
        ),
    ]:
        assert compute_content_hash(inputs, params, "S", "L", image_digest=image) == sha256(text)


ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"uri": st.text(max_size=8)},
        optional={"size": st.integers(0, 2**53), "etag": st.text(max_size=4), "checksum": st.text(max_size=4)},
    ),
    max_size=6,
)
PARAMS = st.dictionaries(st.text(max_size=4), st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)))


@pytest.mark.clause("IEN-01")
@given(entries=ENTRIES, params=PARAMS, data=st.data())
def test_the_hash_does_not_depend_on_the_order_of_inputs_and_keys(
    entries: Any, params: Any, data: st.DataObject
) -> None:
    shuffled = [dict(data.draw(st.permutations(list(entry.items())))) for entry in data.draw(st.permutations(entries))]
    other = dict(data.draw(st.permutations(list(params.items()))))
    assert compute_content_hash(entries, params, "S", "L") == compute_content_hash(shuffled, other, "S", "L")


@pytest.mark.clause("IEN-01")
@given(entries=ENTRIES.filter(bool), params=PARAMS, number=st.integers(0, 99))
def test_a_change_of_any_member_changes_the_hash(entries: Any, params: Any, number: int) -> None:
    chosen = entries[number % len(entries)]
    rest = [entry for entry in entries if entry is not chosen]
    variants = [
        (rest, params, "S", "L", None),
        *[
            ([*rest, {**chosen, name: other}], params, "S", "L", None)
            for name, other in {"uri": chosen["uri"] + "x", "size": -1, "etag": "other", "checksum": "other"}.items()
        ],
        (entries, {**params, "one more": 1}, "S", "L", None),
        (entries, params, "T", "L", None),
        (entries, params, "S", "M", None),
        (entries, params, "S", "L", "sha256:1"),
    ]
    hashes = {
        compute_content_hash(inputs, changed_params, sha, lock, image_digest=image)
        for inputs, changed_params, sha, lock, image in variants
    }
    assert compute_content_hash(entries, params, "S", "L") not in hashes
    assert len(hashes) == len(variants)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create a repository with a package, its lockfile, and one commit."""
    package = tmp_path / "repository" / "package"
    package.mkdir(parents=True)
    (package / "node.py").write_text("X = 1\n")
    (package.parent / "lock").write_text("a==1\n")
    (package.parent / "README").write_text("read me\n")
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-qm", "begin")
    return package.parent


@pytest.mark.clause("IEN-02")
def test_a_clean_checkout_is_identified_by_its_commit_and_a_changed_one_by_its_files(checkout: Path) -> None:
    package, lock = checkout / "package", checkout / "lock"
    clean = fingerprint(package, lockfile=lock)
    assert clean.code_sha == git(checkout, "rev-parse", "HEAD").strip()
    assert clean.lockfile_hash == sha256("a==1\n")
    (checkout / "README").write_text("read me again\n")
    assert fingerprint(package, lockfile=lock) == clean, "a file outside the package does not count"
    (package / "node.py").write_text("X = 2\n")
    changed = fingerprint(package, lockfile=lock)
    assert changed.code_sha == files_digest(package)
    assert changed.code_sha.startswith("files:")


@pytest.mark.clause("IEN-02")
def test_a_checkout_without_its_git_objects_is_identified_by_its_files(checkout: Path) -> None:
    # Git's index exists, but the committed objects do not.
    for commit in (checkout / ".git" / "objects").glob("??/*"):
        commit.unlink()
    assert fingerprint(checkout / "package", lockfile=checkout / "lock").code_sha == files_digest(checkout / "package")


@pytest.mark.clause("IEN-02")
@pytest.mark.parametrize(
    "change",
    [
        lambda package: (package / "node.py").write_text("X = 2\n"),
        *(
            lambda package, name=name: (package / name).write_text("1\n")
            for name in ("query.sql", "card.yaml", "schema.json")
        ),
        lambda package: (package / "node.py").rename(package / "other.py"),
        lambda package: (package.parent / "lock").write_text("a==2\n"),
    ],
    ids=["changed", "SQL added", "YAML added", "JSON added", "renamed", "other lockfile"],
)
def test_installed_code_is_identified_by_its_files_and_lockfile(
    checkout: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    installed = tmp_path / "site" / "package"
    shutil.copytree(checkout / "package", installed)
    shutil.copy(checkout / "lock", installed.parent / "lock")
    before = fingerprint(installed, lockfile=installed.parent / "lock")
    assert before.code_sha == files_digest(checkout / "package")
    assert fingerprint(installed, lockfile=installed.parent / "lock", image_digest="sha256:1") != before
    change(installed)
    after = fingerprint(installed, lockfile=installed.parent / "lock")
    hashes = {compute_content_hash([], {}, code.code_sha, code.lockfile_hash) for code in (before, after)}
    assert len(hashes) == 2


def test_a_missing_lockfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="lockfile is missing"):
        fingerprint(tmp_path, lockfile=tmp_path / "no-such-lock")
