"""What `kfm export` itself does: write the release bundle, or verify one. Nothing else of `kfm export`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.exports.bundle.content import BUNDLE, LAYOUT, MANIFEST, SUMMED, Release
from kfm_dagster.exports.bundle.keys import open_signer, trusted_certificates
from kfm_dagster.exports.bundle.verification import verify_release
from kfm_dagster.exports.bundle.writing import write_release
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings


def write_bundle(gather: Callable[[Pipeline], Release], *, out: Path | None, key: Path | None, as_json: bool) -> None:
    """Write `PTN_EXPORT` into a folder (default KFM_HOME/exports), signed by a key file or by the settings' key.

    A key that is made for it is told on stderr. Raises KfmError; then nothing has been written, but that key where only
    the folder refuses.
    """
    settings = Settings.load()
    with opened_pipeline(settings, read_only=True) as pipeline:
        release = gather(pipeline)
        # After all that may refuse: a key is made for what is signed.
        signer = open_signer(settings, key)
        if signer.made is not None:
            click.echo(
                f"kfm: made a signing key, {signer.fingerprint}: {signer.made}; keep it, and keep it secret", err=True
            )
        folder = (out or settings.home / "exports") / BUNDLE
        done = write_release(release, folder, signer)
    if as_json:
        told = {"folder": str(done.folder), "files": list(LAYOUT)}
        click.echo(json.dumps({**told, "certificate": str(done.certificate), "signed_by": signer.fingerprint}))
        return
    click.echo(str(done.folder))
    click.echo(f"signed by {signer.fingerprint}; its certificate: {done.certificate}")


def verify_bundle(folder: Path, *, certificate: Path | None, as_json: bool) -> None:
    """Say by whom a bundle was signed, and when, also where the folder is the one that was given to --out.

    Raises ReleaseRefusedError, and ConfigurationError without a key.
    """
    if (folder / BUNDLE).is_dir() and not (folder / MANIFEST).exists():
        folder = folder / BUNDLE
    verified = verify_release(folder, trusted_certificates(Settings.load(), certificate))
    at = rfc3339(verified.signed.at, timespec="seconds")
    if as_json:
        told = {"folder": str(folder), "signed_by": verified.signed.fingerprint, "signed_at": at}
        click.echo(json.dumps({**told, "bytes": verified.size}))
        return
    signed = f"as {verified.signed.fingerprint} signed them at {at}"
    click.echo(f"{folder}: {len(SUMMED)} files, {verified.size} bytes, {signed}")
