"""`kfm console`: the deployment's status, the validation report and the metrics over HTTP. Only reads."""

from __future__ import annotations

from contextlib import suppress

import click

from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.console.serving import is_loopback, serve


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=3001, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
def console(*, host: str, port: int) -> None:
    """Serve what kfm status and kfm validate say, and the metrics, to browsers and monitors, until Ctrl-C.

    GET / and GET /validate answer with JSON or a page, as the Accept header likes or ?format=json says; the report
    looks back as far as ?days=1 says. GET /metrics is for Prometheus; with OTEL_EXPORTER_OTLP_ENDPOINT set the metrics
    are sent there, too. There is no login: who reaches the address may read it.

    Example: kfm console --port 3001
    """

    def ready(address: str) -> None:
        if not is_loopback(host):
            click.echo(f"# anybody who reaches {host} may read the report: there is no login", err=True)
        click.echo(address)
        click.echo("# and /validate, /metrics; serving until Ctrl-C", err=True)

    # The way to end it, not a failure.
    with opened_pipeline(read_only=True) as pipeline, suppress(KeyboardInterrupt):
        serve(pipeline, host=host, port=port, ready=ready)
