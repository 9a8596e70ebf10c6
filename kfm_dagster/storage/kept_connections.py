"""An SQLAlchemy plugin that keeps connections of a URL open: `...?plugin=kfm_keep`.

Dagster opens a connection for each query to PostgreSQL, and for each connection the server starts a process. A plugin
is SQLAlchemy's public way to change `create_engine`: `KFM_DAGSTER_DSN` names it, and Dagster's own
storage classes stay in use.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL, CreateEnginePlugin
from sqlalchemy.pool import QueuePool


class KeptConnections(CreateEnginePlugin):
    """Keeps an idle connection of an engine open, whatever pool `create_engine` is called with."""

    def __init__(self, url: URL, kwargs: dict[str, Any]) -> None:
        """Replace the pool in the arguments of `create_engine`."""
        super().__init__(url, kwargs)
        # One idle connection of an engine; concurrent threads get more connections, which are closed afterwards.
        kwargs |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": -1, "pool_pre_ping": True}

    def update_url(self, url: URL) -> URL:
        """Return the URL unchanged, because SQLAlchemy has already removed `plugin`."""
        return url
