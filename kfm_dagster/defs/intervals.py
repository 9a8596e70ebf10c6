"""How often sensors tick: what Dagster's daemon makes of an interval. Does not belong here: what a tick does."""


def ticking_every(seconds: int) -> int:
    """Return the minimum interval of a sensor that is to tick every so many seconds, in seconds.

    The daemon looks every five seconds (MIN_INTERVAL_LOOP_TIME of dagster._daemon.sensor) which sensors began their
    last tick at least an interval ago. It comes a few milliseconds early as often as late, and of an interval of five
    seconds that makes ten every other time; so the interval ends a second before the look that is meant.
    """
    return max(1, seconds - 1)
