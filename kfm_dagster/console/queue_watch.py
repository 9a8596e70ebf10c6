"""How many messages are on the deployment's queues: asked beside the requests, so that no scrape waits for a queue.

A queue that does not answer, or has not for a minute, is left out, and an alert tells that its depth is missing.
Does not belong here: what the numbers are called (`exports/metrics.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError

from kfm_dagster.errors import KfmError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.redaction import error_text

EVERY_SECONDS = 15.0
"""As often as Prometheus scrapes mostly; each look is one request to each queue."""
FRESH_SECONDS = 60.0
"""How long an answer counts."""

_LOG = logging.getLogger(__name__)


class QueueWatch:
    """Asks the primary queue and the dead-letter queue."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._found: dict[str, tuple[float, int]] = {}

    def depths(self) -> Mapping[str, int]:
        """Return messages by queue, as the queues said within the last minute."""
        since = time.monotonic() - FRESH_SECONDS
        return {queue: messages for queue, (at, messages) in list(self._found.items()) if at >= since}

    def look(self) -> None:
        """Ask each queue once. What a drain has in hand is hidden and still a dead letter."""
        settings = self._pipeline.settings
        # Connecting may fail as well as asking.
        self._ask(settings.sqs_primary_queue, lambda: self._pipeline.queue.depth().visible)
        self._ask(settings.sqs_dlq_queue, lambda: self._pipeline.dead_letters.depth().total)

    @contextmanager
    def watching(self, *, seconds: float = EVERY_SECONDS) -> Iterator[None]:
        """Look at once and every so many seconds until the block ends, which waits for no queue."""
        over = threading.Event()

        def keep() -> None:
            self.look()
            while not over.wait(seconds):
                self.look()

        threading.Thread(target=keep, name="queue-watch", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _ask(self, queue: str, ask: Callable[[], int]) -> None:
        try:
            self._found[queue] = (time.monotonic(), ask())
        except (KfmError, BotoCoreError) as error:
            _LOG.info("the depth of %s is not known: %s", queue, error_text(error))
