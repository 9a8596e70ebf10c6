"""One hour of UTC. Nothing else belongs here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kfm_dagster.errors import ConfigurationError

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The hour that begins at `start`; its end is exclusive. Raises ConfigurationError."""

    start: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.start.timestamp() % HOUR.total_seconds():
            raise ConfigurationError(
                "a window begins at a full hour of UTC", observed=self.start.isoformat(), expected="2026-03-01T12"
            )

    @classmethod
    def named(cls, name: str) -> Window:
        """Read `2026-03-01T12`, or a longer ISO 8601 text of the same hour. Raises ConfigurationError."""
        try:
            start = datetime.fromisoformat(name)
        except ValueError:
            raise ConfigurationError("no such hour", observed=name, expected="2026-03-01T12") from None
        return cls(start=start if start.tzinfo else start.replace(tzinfo=UTC))

    @property
    def name(self) -> str:
        """`2026-03-01T12`."""
        return self.start.astimezone(UTC).strftime("%Y-%m-%dT%H")

    def bounds(self) -> dict[str, str]:
        """Return both ends as text: `start` (inclusive) and `end` (exclusive)."""
        return {
            name: moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for name, moment in (("start", self.start), ("end", self.start + HOUR))
        }
