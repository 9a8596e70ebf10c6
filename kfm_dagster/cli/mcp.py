"""`kfm mcp`: what the ledger says, for assistants that speak the Model Context Protocol. Only reads."""

from __future__ import annotations

import click

from kfm_dagster.cli.session import opened_pipeline


@click.command()
def mcp() -> None:
    """Serve search, explanations, status, failures and gaps to an assistant over stdio, until it hangs up.

    A server of the Model Context Protocol (extra mcp), which an assistant starts by itself: docs/mcp.md has its
    configuration. The database refuses every write of it.

    Example: kfm mcp
    """
    # Only here, because it is an extra.
    from kfm_dagster.console.mcp_server import mcp_server  # noqa: PLC0415

    with opened_pipeline(read_only=True) as pipeline:
        mcp_server(pipeline).run("stdio")
