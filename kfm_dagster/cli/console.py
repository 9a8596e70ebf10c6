"""`kfm console` and `kfm mcp`: pages for browsers, metrics over HTTP, tools for assistants."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import click

from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.console.serving import is_loopback, serve


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=3001, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
def console(*, host: str, port: int) -> None:
    """Serve the console, its JSON API, metrics and health checks.

    GET / shows the deployment's problems and next steps; every number leads to its units, every unit to its history.
    GET / and GET /validate answer browsers with pages, other clients with JSON, or by ?format=. GET /metrics is for
    Prometheus; with OTEL_EXPORTER_OTLP_ENDPOINT set the metrics are sent there, too. Everyone who reaches the
    address may read; decisions (release, discard, retry, kill switch, replays) need a token of KFM_CONSOLE_TOKENS.

    Example: kfm console --port 3001
    """

    def ready(address: str) -> None:
        if not is_loopback(host):
            click.echo(f"# everyone who reaches {host} may read; only decisions need a token", err=True)
        click.echo(address)
        click.echo("# for a browser; /api/v1 and /metrics for programs; until Ctrl-C", err=True)

    # Ctrl-C is the way to end it, not a failure.
    with opened_pipeline(read_only=True) as pipeline, suppress(KeyboardInterrupt), ExitStack() as opened:
        _ = pipeline.registry.contracts  # a wrong contract stops a server at its start, not its first page
        deciding = opened.enter_context(opened_pipeline()) if pipeline.settings.console_tokens else None
        serve(pipeline, host=host, port=port, ready=ready, deciding=deciding)


@click.command()
def mcp() -> None:
    """Serve read-only tools to an assistant over stdio.

    A server of the Model Context Protocol (extra mcp), which an assistant starts by itself: docs/mcp.md has its
    configuration. The database refuses every write of this server.

    Example: kfm mcp
    """
    # Imported here, because it is an extra.
    from kfm_dagster.console.mcp_server import mcp_server  # noqa: PLC0415

    with opened_pipeline(read_only=True) as pipeline:
        _ = pipeline.registry.contracts  # as above
        mcp_server(pipeline).run("stdio")
