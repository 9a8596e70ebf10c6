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

    GET / shows the deployment's problems and next steps. Every number links to its units, and every unit to its
    history. GET / and GET /validate answer a browser with a page and other clients with JSON; ?format= chooses one.
    GET /metrics is for Prometheus; if OTEL_EXPORTER_OTLP_ENDPOINT is set, the metrics are sent there, too. Everyone who
    reaches the address can read. Decisions (release, discard, retry, kill switch, replays) need a token of
    KFM_CONSOLE_TOKENS.

    Example: kfm console --port 3001
    """

    def ready(address: str) -> None:
        if not is_loopback(host):
            click.echo(f"# everyone who reaches {host} may read; only decisions need a token", err=True)
        click.echo(address)
        click.echo("# for browsers; /api/v1 and /metrics are for programs; Ctrl-C ends the server", err=True)

    # Ctrl-C is the way to end the server, not a failure.
    with opened_pipeline(read_only=True) as pipeline, suppress(KeyboardInterrupt), ExitStack() as opened:
        _ = pipeline.registry.contracts  # a wrong contract must stop the start, not the first page
        deciding = opened.enter_context(opened_pipeline()) if pipeline.settings.console_tokens else None
        serve(pipeline, host=host, port=port, ready=ready, deciding=deciding)


@click.command()
def mcp() -> None:
    """Serve read-only tools to an assistant over stdio.

    An assistant starts this server of the Model Context Protocol (extra mcp) by itself; docs/mcp.md has the
    assistant's configuration. The database refuses every write of this server.

    Example: kfm mcp
    """
    # Imported here, because the module needs the extra mcp.
    from kfm_dagster.console.mcp_server import mcp_server  # noqa: PLC0415

    with opened_pipeline(read_only=True) as pipeline:
        _ = pipeline.registry.contracts  # as for the console
        mcp_server(pipeline).run("stdio")
