"""The evaluator of alerts: from recorded events to messages sent by services of apprise.

In an evaluation, a dead URL delays the other URLs by at most one timeout. No log line, row or page shows a credential.
Belongs here: the receivers of each alert, the URLs of KFM_ALERT_URLS, and sending a message to a URL. Does not belong
here: the rules (`sql/queries/alerts.sql`), the rows, or the text of a message (`store.py`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product
from urllib.parse import unquote, urlsplit

import apprise
from pydantic import SecretStr

from kfm_dagster.alerts.plan import AlertPlan, AlertRule, Level
from kfm_dagster.alerts.store import AlertMessage, AlertStore, Evaluation, RuleEndpoints, consumer_of, message_of, trial
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.storage.database import Database

SECONDS = 10.0
"""Timeout of a service's answer; a whole tick of the sensor has 60 s."""
BUDGET_SECONDS = 30.0
"""After this time an evaluation sends no further message; the next evaluation continues."""
SHORTEST_SECRET = 4
"""Least length in characters of a URL's part to blot out; a shorter part can also occur in ordinary words."""

_ENTRY = re.compile(r"(?:([a-z][a-z0-9_]*)=)?([A-Za-z][A-Za-z0-9+.-]*://\S+)")
_TALKATIVE = (apprise.LOGGER_NAME, "urllib3.connectionpool")
"""Loggers that write parts of URLs, even of a URL that apprise cannot read."""
_KINDS = {
    Level.INFO: apprise.NotifyType.INFO,
    Level.WARNING: apprise.NotifyType.WARNING,
    Level.CRITICAL: apprise.NotifyType.FAILURE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A URL, its number among the URLs (the first is 1), and the channels that use it."""

    number: int
    channels: tuple[str, ...]
    url: SecretStr = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An endpoint's answer: apprise's name of the service, and the error if sending failed."""

    service: str
    error: str | None = None


def endpoints_of(urls: SecretStr | None, channels: Collection[str]) -> list[Endpoint]:
    """Read entries `URL` or `CHANNEL=URL`, separated by blanks; a bare URL is for every channel.

    Raises ConfigurationError with the number of the wrong entry.
    """
    channels_by_url: dict[str, list[str]] = {}
    for place, entry in enumerate(("" if urls is None else urls.get_secret_value()).split(), start=1):
        match = _ENTRY.fullmatch(entry)
        if match is None or (match[1] is not None and match[1] not in channels):
            raise ConfigurationError(
                "environment variable KFM_ALERT_URLS is wrong",
                observed=f"entry {place}" + ("" if match is None else f", channel {match[1]}"),
                expected=f"URL or CHANNEL=URL, separated by blanks; the channels are {', '.join(channels)}",
                next_step="correct the entry, or name its channel in alerts.yaml",
            )
        url_channels = channels_by_url.setdefault(match[2], [])
        url_channels += [name for name in ([match[1]] if match[1] else channels) if name not in url_channels]
    return [
        Endpoint(number=number, channels=tuple(names), url=SecretStr(url))
        for number, (url, names) in enumerate(channels_by_url.items(), start=1)
    ]


_SECRETS: ContextVar[frozenset[str]] = ContextVar("kfm_alert_secrets", default=frozenset())


def _blot(record: logging.LogRecord) -> bool:
    """Remove the secrets of the URL in use from libraries' log records, for every handler."""
    if secrets := _SECRETS.get():
        record.msg, record.args, record.exc_info = _blotted(record.getMessage(), secrets), (), None
    return True


def send(endpoint: Endpoint, message: AlertMessage, *, seconds: float = SECONDS) -> Answer:
    """Send a message and wait at most `seconds`. Never raises; the answer names an error."""
    url = endpoint.url.get_secret_value()
    for name in _TALKATIVE:
        logging.getLogger(name).addFilter(_blot)
    before = _SECRETS.set(frozenset())
    try:
        return _sent(url, message, seconds)
    except Exception as error:
        # A fault in the service's code. The error's text can contain the URL.
        return Answer(service=_scheme(url), error=type(error).__name__)
    finally:
        _SECRETS.reset(before)


def _sent(url: str, message: AlertMessage, seconds: float) -> Answer:
    _SECRETS.set(_secrets(url))
    asset = apprise.AppriseAsset(app_id="kfm_dagster", app_desc="alerts over the stages", app_url="")
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        return Answer(service=_scheme(url), error="apprise knows no such URL (its list: appriseit.com/services)")
    for timeout in ("socket_connect_timeout", "socket_read_timeout"):
        # With apprise's shorter default, a slow service would get a message twice. A timeout in the URL is kept.
        if timeout not in vars(service):
            setattr(service, timeout, seconds)
    shown = str(service.url(privacy=True))  # type: ignore[no-untyped-call]  # apprise has no type here
    _SECRETS.set(_secrets(url, shown=shown))
    outcome = apprise.Apprise(service, asset=asset).notify(
        body=message.body, title=message.title, notify_type=_KINDS[message.level], timeout=seconds
    )
    if outcome:
        return Answer(service=str(service.service_name))
    errors = [str(entry.message) for result in outcome for entry in result.logs()] or [outcome.status.name]
    return Answer(service=str(service.service_name), error=" ".join(errors[0].split()))


def _scheme(url: str) -> str:
    return f"{url.partition('://')[0]}://"


def _secrets(url: str, *, shown: str = "") -> frozenset[str]:
    """Return the secret parts of a URL: all parts except a host that apprise itself shows.

    A token can be anywhere: in place of the host (Slack), or in the path (a webhook).
    """
    host = urlsplit(url).hostname or ""
    pieces = re.split(r"[/:@?&=#]+", url.partition("://")[2])
    parts = {part for piece in pieces for part in (piece, unquote(piece)) if len(part) >= SHORTEST_SECRET}
    return frozenset(part for part in parts if part.lower() != host or host not in shown)


def _blotted(text: str, secrets: Collection[str]) -> str:
    for part in sorted(secrets, key=len, reverse=True):
        text = text.replace(part, "****")
    return text


@dataclass(frozen=True, kw_only=True)
class AlertEvaluator:
    """Evaluates and delivers alerts; `on_divergence` has further channels of replay_divergence."""

    plan: AlertPlan
    on_divergence: Collection[str]
    max_offset: timedelta
    tau_calib: timedelta
    database: Database
    clock: Callable[[], datetime]
    urls: SecretStr | None
    send: Callable[[Endpoint, AlertMessage], Answer] = send

    @property
    def store(self) -> AlertStore:
        """The alerts in the database."""
        return AlertStore(self.database, clock=self.clock)

    def evaluate(self) -> Evaluation:
        """Check the URLs (ConfigurationError), evaluate the rules, then deliver due messages."""
        endpoints = endpoints_of(self.urls, self.plan.channels)
        now, receivers = self.clock(), self._rule_endpoints(endpoints)
        limits = {"max_offset": self.max_offset.total_seconds(), "calibrated_since": now - self.tau_calib}
        terms = [
            {
                "rule": rule,
                "level": (terms := self.plan.rules[rule]).level,
                "threshold": terms.threshold,
                "since": now - terms.window,
                "quiet_since": now - terms.suppress,
                "escalate_before": None if terms.escalate_after is None else now - terms.escalate_after,
                "audience": sorted(level for level in Level if receivers.get((rule, level))),
            }
            for rule in AlertRule
        ]
        self.store.update(terms, limits, receivers)
        return self._deliver(endpoints)

    def unheard(self) -> list[str]:
        """Return the channels without a URL. Raises ConfigurationError for wrong URLs."""
        used = {channel for endpoint in endpoints_of(self.urls, self.plan.channels) for channel in endpoint.channels}
        return [channel for channel in self.plan.channels if channel not in used]

    def _rule_endpoints(self, endpoints: Sequence[Endpoint]) -> RuleEndpoints:
        receivers: dict[tuple[str, str], dict[int, str]] = {}
        for rule, level in product(AlertRule, Level):
            extra = self.on_divergence if rule is AlertRule.REPLAY_DIVERGENCE else ()
            for channel, endpoint in product([*self.plan.levels[level], *extra], endpoints):
                if channel in endpoint.channels:
                    receivers.setdefault((rule, level), {}).setdefault(endpoint.number, channel)
        return receivers

    def _deliver(self, endpoints: Sequence[Endpoint]) -> Evaluation:
        consumers = {
            consumer_of(endpoint.number, channel): (endpoint, channel)
            for endpoint in endpoints
            for channel in endpoint.channels
        }
        alive = {endpoint.number for endpoint in endpoints}
        delivered, dead = 0, []
        deadline = time.monotonic() + BUDGET_SECONDS
        while alive and time.monotonic() < deadline:
            claimed = self.store.claim([name for name, (endpoint, _) in consumers.items() if endpoint.number in alive])
            if claimed is None:
                break
            alert, entry = claimed
            endpoint, channel = consumers[entry.consumer]
            message = message_of(alert, self.plan.rules[alert.rule], why=entry.payload["why"])
            answer = self.send(endpoint, message)
            self.store.close(entry, error=answer.error)
            if answer.error is None:
                delivered += 1
                continue
            # A dead endpoint would delay each further message by the timeout. The next evaluation tries it again.
            alive.remove(endpoint.number)
            dead.append(f"channel {channel}, URL {endpoint.number} ({answer.service}): {answer.error}")
        return Evaluation(delivered=delivered, dead=dead)


def try_out(plan: AlertPlan, urls: SecretStr | None) -> list[tuple[str, Answer]]:
    """Send a test message to each URL of every channel; return their answers.

    Raises ConfigurationError for wrong URLs.
    """
    endpoints = endpoints_of(urls, plan.channels)
    no_url = Answer(service="none", error="the channel has no URL in KFM_ALERT_URLS")
    answers: list[tuple[str, Answer]] = []
    for channel in plan.channels:
        targets = [endpoint for endpoint in endpoints if channel in endpoint.channels]
        answers += [(channel, send(endpoint, trial(channel))) for endpoint in targets] or [(channel, no_url)]
    return answers
