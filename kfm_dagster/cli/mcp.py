"""`kfm mcp`: what the ledger says, for assistants that speak the Model Context Protocol. Only reads."""

from __future__ import annotations

import importlib.util

import click

from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.errors import ConfigurationError


@click.command()
def mcp() -> None:
    """Serve search, explanations, status, failures and gaps to an assistant over stdio, until it hangs up.

    A server of the Model Context Protocol (extra mcp), which an assistant starts by itself: docs/mcp.md has its
    configuration. The database refuses every write of it.

    Example: kfm mcp
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError(
            "the Model Context Protocol is not installed", next_step="pip install 'kfm-dagster[mcp]'"
        )
    # Only here, because it is an extra.
    from kfm_dagster.console.mcp_server import mcp_server  # noqa: PLC0415

    with opened_pipeline(read_only=True) as pipeline:
        mcp_server(pipeline).run("stdio")
