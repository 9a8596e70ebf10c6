"""`kfm export` writes the deployment's content as files, and only reads the database."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kfm_dagster.cli.files import refuse_unwritable
from kfm_dagster.cli.session import opened_database, opened_pipeline
from kfm_dagster.cli.tables import object_as_json
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.exports.bundle.content import BUNDLE, LAYOUT, MANIFEST, SUMMED, gather_release
from kfm_dagster.exports.bundle.folder import refuse_foreign, verify_release, write_release
from kfm_dagster.exports.bundle.signing import open_signer, trusted_certificates
from kfm_dagster.exports.dcat import export_dcat
from kfm_dagster.exports.graph import FILES, export_graph
from kfm_dagster.run_state.choice import looked_up_states
from kfm_dagster.settings import Settings

_OUT = click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the files. Default: a folder below KFM_HOME/exports."
)


@click.group(invoke_without_command=True)
@click.option(
    "--verify",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Verify the release bundle in this folder, or in the PTN_EXPORT below it: the signature, all sums, and that "
    "no file is missing or extra.",
)
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="OpenPGP certificate to verify with. Default: that of KFM_SIGNING_KEY, else KFM_HOME/keys/release.asc.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for PTN_EXPORT. Default: KFM_HOME/exports."
)
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="OpenPGP key to sign with. Default: KFM_SIGNING_KEY, else a key generated once in KFM_HOME/keys.",
)
@object_as_json
@click.pass_context
def export(
    ctx: click.Context,
    *,
    verify: Path | None,
    certificate: Path | None,
    out: Path | None,
    key: Path | None,
    as_json: bool,
) -> None:
    """Write or verify the release bundle, a DCAT catalog or a graph.

    Example: kfm export --out public/
    """
    if ctx.invoked_subcommand is not None:
        if verify or certificate or out or key or as_json:
            raise click.UsageError(f"kfm export's own options cannot be combined with {ctx.invoked_subcommand}", ctx)
        return
    if verify is not None and (out or key):
        raise click.UsageError("--out and --key write a bundle, --verify reads an existing bundle", ctx)
    if verify is None and certificate:
        raise click.UsageError("--certificate needs --verify", ctx)
    if verify is not None:
        _verify_bundle(verify, certificate=certificate, as_json=as_json)
    else:
        _write_bundle(out=out, key=key, as_json=as_json)


@export.command()
@_OUT
@object_as_json
def dcat(*, out: Path | None, as_json: bool) -> None:
    """Write every collection as a dcat:Dataset (DCAT 3, JSON-LD).

    Example: kfm export dcat --out public/
    """
    settings = Settings.load()
    with opened_database(settings) as database:
        file = export_dcat(
            database,
            ContractRegistry.load(settings.contracts_dir),
            looked_up_states(database, settings),
            catalog=settings.catalog_public_url or settings.catalog,
            folder=out or settings.home / "exports" / "dcat",
            contact=settings.contact,
        )
    click.echo(json.dumps({"files": [str(file)]}) if as_json else str(file))


@export.command()
@_OUT
@object_as_json
def graph(*, out: Path | None, as_json: bool) -> None:
    """Write all outputs, Items, objects and lineage as openCypher (graph.cypher) and bulk CSV.

    schema.cypher declares the tables, for engines that need declarations first (LadybugDB, Kuzu).

    Example: kfm export graph --out public/
    """
    settings = Settings.load()
    with opened_database(settings) as database:
        registry = ContractRegistry.load(settings.contracts_dir)
        folder = out or settings.home / "exports" / "graph"
        counts = export_graph(database, registry, folder=folder)
    files = [str(folder / name) for name in FILES]
    summary = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing has been applied yet"
    click.echo(json.dumps({"files": files, "counts": counts}) if as_json else "\n".join([*files, summary]))


def _write_bundle(*, out: Path | None, key: Path | None, as_json: bool) -> None:
    """Write the signed `PTN_EXPORT` into a folder, by default KFM_HOME/exports.

    `key` overrides the settings' key; a created key is reported on stderr. Raises KfmError before anything is written.
    """
    settings = Settings.load()
    with opened_pipeline(settings, read_only=True) as pipeline:
        release = gather_release(pipeline)
        folder = (out or settings.home / "exports").absolute() / BUNDLE
        refuse_foreign(folder)
        refuse_unwritable(folder, "the export", "name another folder with --out")
        # After every check that can refuse the release, so that no key is created for a refused release.
        signer = open_signer(settings, key)
        if signer.created is not None:
            click.echo(
                f"kfm: created signing key {signer.fingerprint}: {signer.created}; keep it, and keep it secret",
                err=True,
            )
        certificate = write_release(release, folder, signer)
    summary = {"folder": str(folder), "files": LAYOUT, "certificate": str(certificate), "signed_by": signer.fingerprint}
    text = f"{folder}\nsigned by {signer.fingerprint}; its certificate: {certificate}"
    click.echo(json.dumps(summary) if as_json else text)


def _verify_bundle(folder: Path, *, certificate: Path | None, as_json: bool) -> None:
    """Print signer and time of the bundle in `folder`, or in the PTN_EXPORT below it.

    Raises RefusedError for a wrong bundle, ConfigurationError without a certificate.
    """
    if (folder / BUNDLE).is_dir() and not (folder / MANIFEST).exists():
        folder = folder / BUNDLE
    signed, manifest = verify_release(folder, trusted_certificates(Settings.load(), certificate))
    signer, at = signed.fingerprint, rfc3339(signed.at, timespec="seconds")
    summary = {"folder": str(folder), "signed_by": signer, "signed_at": at, "bytes": manifest.size}
    text = f"{folder}: {len(SUMMED)} files, {manifest.size} bytes, as {signer} signed them at {at}"
    click.echo(json.dumps(summary) if as_json else text)
