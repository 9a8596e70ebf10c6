"""Threads that work over a batch, or call a function periodically beside the work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from kfm_dagster.failpoints import Argument, Result, with_context


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """The threads of a process."""

    most: int
    """Number of threads that read at the same time."""

    def concurrently(self, work: Callable[[Argument], Result], batch: Iterable[Argument]) -> list[Result]:
        """Apply `work` to each element; return the results in the batch's order.

        If `most` is 1, the caller's thread works, because a pool's thread would contend with it for the interpreter.
        """
        if self.most == 1:
            return [work(element) for element in batch]
        with ThreadPoolExecutor(max_workers=self.most) as pool:
            return list(pool.map(with_context(work), batch))

    @contextmanager
    def repeating(
        self,
        tick: Callable[[], None],
        *,
        seconds: float,
        name: str,
        at_once: bool = False,
        patience: float | None = None,
    ) -> Iterator[None]:
        """Call `tick` every `seconds` until the block ends, on a thread that ends with the block.

        With `at_once`, the first call is immediate, else after an interval. A call under way when the block ends is
        awaited for at most `patience` seconds (None: no limit).
        """
        over = threading.Event()

        def keep(over: threading.Event) -> None:
            pause = 0.0 if at_once else seconds
            while not over.wait(pause):
                tick()
                pause = seconds

        thread = threading.Thread(target=with_context(keep), args=(over,), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(patience)
