"""The in-toto statement of a release: its files, and the commit and the lock that they were built from.

    python deploy/release/statement.py dist --builder https://ci.example.org/kfm > dist/provenance.intoto.json

An in-toto Statement v1 with SLSA's provenance v1. It is unsigned: the publisher of the release signs it (cosign
attest-blob, gpg). The subjects are the wheel and the sdist of the folder; SBOMs in the folder (*.cdx.json) are named as
by-products. The same files, commit and builder give the same bytes.
"""  # noqa: INP001, a script, in no package

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD_TYPE = "urn:kfm:nodd:build:uv-build/v1"
"""Type of the build: `make dist` in a checkout of the commit, with the tools that the lock names."""


def statement(folder: Path, *, builder: str, commit: str) -> dict[str, Any]:
    """Return the statement of the files in a folder. Raises SystemExit unless it has one wheel and one sdist."""
    built = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    if sorted(path.suffix for path in built) != [".gz", ".whl"]:
        raise SystemExit(
            f"statement: {folder} has {len(built)} built files; expected a wheel and an sdist; next: make dist"
        )
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": _described(built),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *_described([ROOT / "requirements.lock"]),
                ],
            },
            "runDetails": {"builder": {"id": builder}, "byproducts": _described(folder.glob("*.cdx.json"))},
        },
    }


def clean_commit() -> str:
    """Return the commit of the checkout. Raises SystemExit where files differ from it: then no commit is its source."""
    if _git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit("statement: the checkout has changes; expected files as they are committed; next: commit them")
    return _git("rev-parse", "HEAD")


def _described(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [
        {"name": path.name, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
        for path in sorted(files)
    ]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603, S607
    return done.stdout.strip()


def main() -> None:
    """Print the statement of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="Folder of the files of make dist.")
    parser.add_argument("--builder", required=True, help="URI of the builder, which SLSA trusts.")
    options = parser.parse_args()
    document = statement(options.folder, builder=options.builder, commit=clean_commit())
    sys.stdout.write(json.dumps(document, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
