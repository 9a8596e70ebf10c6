"""One process that acts and is killed on its way: `python -m kfm_dagster_tests.recovery.dying ACT SEAM N`.

It drains or redrives, and kills itself with SIGKILL when it reaches that failpoint for the N-th time. Queues and
database come from the environment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import count

from kfm_dagster import failpoints
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.dead_letters.batches import Bounds
from kfm_dagster.recovery.dead_letters.drain import drain
from kfm_dagster.recovery.dead_letters.moves import redrive
from kfm_dagster.settings import Settings


def main(act: str, failpoint: str, nth: str) -> None:
    """Act until killed."""
    pipeline = Pipeline.open(Settings.load())
    reached, lock = count(1), threading.Lock()

    def die(here: failpoints.Failpoint, labels: failpoints.Labels) -> None:
        with lock:
            if here == failpoint and next(reached) == int(nth):
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.install(die)
    decision = Decision(actor="jane", reason="the feed was repaired", change_ref="INC-7")
    {"drain": drain, "redrive": redrive}[act](pipeline, decision=decision, bounds=Bounds(batch_size=20))


if __name__ == "__main__":
    main(*sys.argv[1:])
