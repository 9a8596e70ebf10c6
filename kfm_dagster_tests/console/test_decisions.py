"""Decisions by forms of the console: authorisation, effects, and entries in the governance log; on SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape, unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from kfm_dagster.console import decisions, session
from kfm_dagster.console.app import console_app
from kfm_dagster.console.session import COOKIE, SESSION_SECONDS, Sessions
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.settings import Environment
from kfm_dagster_tests.factories import bring, envelope
from kfm_dagster_tests.integration.chain import Clock, open_pipeline
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

TOKENS = {"anna": "annas-token-of-20-chars", "bob": "bobs-token-of-20-letters"}
REASON = {"reason": "the source is repaired", "change_ref": "INC-1"}
QUARANTINED, FAILED = 3, 2
PERSON = Decision(actor="person", reason="looked odd")


@dataclass(frozen=True, kw_only=True)
class Console:
    """A console over a ledger with three quarantined and two failed units."""

    pipeline: Pipeline
    quarantined: list[WalId] = field(default_factory=list)
    failed: list[WalId] = field(default_factory=list)

    def browser(self, person: str | None = None) -> TestClient:
        settings = self.pipeline.settings
        tokens = SecretStr(" ".join(f"{name}={token}" for name, token in TOKENS.items()))
        self.pipeline.settings = settings.model_copy(update={"console_tokens": tokens})
        client = TestClient(
            console_app(self.pipeline, hosts=["testserver"], deciding=self.pipeline), follow_redirects=False
        )
        if person is not None:
            assert client.post("/sign-in", data={"token": TOKENS[person]}).status_code == 303
        return client

    def record(self, wal_id: WalId) -> NoddWalRecord:
        record = own_tx(self.pipeline.ledger).get(wal_id)
        assert record is not None
        return record

    def decisions(self) -> list[tuple[str, str]]:
        """Return the governance log without the fixture's entries, the oldest first."""
        entries = reversed(own_tx(self.pipeline.ledger.log).entries())
        return [(entry.actor, entry.action) for entry in entries if entry.action != GovernanceAction.QUARANTINE]


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    pipeline = open_pipeline(tmp_path / "home", None)
    pipeline.clock = clock = Clock()
    units = [envelope(number) for number in range(QUARANTINED + FAILED)]
    bring(pipeline.ledger, "quarantined", units[:QUARANTINED], code="looked_odd")
    bring(pipeline.ledger, "failed", units[QUARANTINED:])
    clock.forward(1)
    ids = [unit.wal_id for unit in units]
    yield Console(pipeline=pipeline, quarantined=ids[:QUARANTINED], failed=ids[QUARANTINED:])
    pipeline.close()


def every_form(console: Console) -> list[str]:
    wal_id = console.quarantined[0]
    return [
        *(f"/units/{wal_id}/{verb}" for verb in ("release", "discard", "retry")),
        *(f"/datasets/nexrad-l2/{verb}" for verb in ("switch-off", "switch-on")),
        *(f"/proposals/1/{verb}" for verb in ("approve", "withdraw")),
        "/replays",
        "/discards",
        "/releases",
        "/alerts/1/acknowledge",
        *(f"/replays/{wal_id}/{verb}" for verb in ("pause", "resume", "stop")),
    ]


def test_decisions_without_a_token_or_from_another_site_are_refused(console: Console) -> None:
    anna = console.browser("anna")
    strangers = [
        (console.browser(), {}),
        (anna, {"origin": "http://evil.example"}),
        (anna, {"origin": "null"}),
        (anna, {"sec-fetch-site": "cross-site"}),
        (TestClient(anna.app, cookies={COOKIE: anna.cookies[COOKIE].replace("anna", "bob")}), {}),
        (TestClient(anna.app, cookies={COOKIE: "anna"}), {}),
    ]
    for path in every_form(console):
        for client, headers in strangers:
            answer = client.post(path, data=REASON, headers=headers)
            assert (answer.status_code, answer.text.count("\n")) == (403, 1), (path, headers)
    assert console.decisions() == []


def signed_in(sessions: Sessions, scheme: str = "http", **headers: str) -> tuple[str, set[str]]:
    """Return Anna's cookie, and its attributes."""
    response = Response()
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    assert sessions.sign_in(
        TOKENS["anna"],
        Request({"type": "http", "scheme": scheme, "server": ("testserver", 80), "path": "/", "headers": sent}),
        response,
    )
    cookie, *attributes = response.headers["set-cookie"].split("; ")
    return cookie.partition("=")[2], set(attributes)


def test_a_cookie_is_valid_for_one_token_and_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = Sessions.of(SecretStr(" ".join(f"{name}={token}" for name, token in TOKENS.items())))
    cookie, attributes = signed_in(sessions)
    assert attributes == {"HttpOnly", f"Max-Age={SESSION_SECONDS}", "Path=/", "SameSite=strict"}
    # TLS ends at the server, at a proxy that declares TLS in a header, or at a proxy that does not.
    for variant in ({"scheme": "https"}, {"x_forwarded_proto": "https, http"}, {"origin": "https://testserver"}):
        assert signed_in(sessions, **variant)[1] - attributes == {"Secure"}
    assert signed_in(sessions, origin="http://testserver", x_forwarded_proto="http")[1] == attributes
    _, until, signature = cookie.split("|")
    later = f"anna|{int(until) + 1}|{signature}"
    renewed = Sessions.of(SecretStr(f"anna=another-{TOKENS['anna']}"))
    for reader, sent, second, actor in (
        (sessions, cookie, int(until) - 1, "anna"),
        (sessions, cookie, int(until), None),
        (sessions, later, int(until) - 1, None),
        (sessions, cookie.replace("anna", "bob"), int(until) - 1, None),
        (renewed, cookie, int(until) - 1, None),
    ):
        monkeypatch.setattr(session.time, "time", lambda now=second: now)
        request = Request({"type": "http", "headers": [(b"cookie", f"{COOKIE}={sent}".encode())]})
        assert reader.actor_of(request) == actor, (sent, second)


def test_failed_sign_ins_are_limited_by_address_and_logged(
    console: Console, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = console.browser()

    def attempt(token: str, address: str = "192.0.2.1") -> int:
        browser = TestClient(client.app, client=(address, 5), follow_redirects=False)
        return browser.post("/sign-in", data={"token": token}).status_code

    with caplog.at_level("INFO", logger="kfm_dagster.console"):
        assert [attempt("x" * 20) for _ in range(session.MOST_ATTEMPTS - 1)] == [403] * (session.MOST_ATTEMPTS - 1)
        # A successful sign-in resets the count.
        assert attempt(TOKENS["anna"]) == 303
        assert [attempt("x" * 20) for _ in range(session.MOST_ATTEMPTS)] == [403] * session.MOST_ATTEMPTS
        assert (attempt("x" * 20), attempt(TOKENS["anna"])) == (429, 429)
        assert attempt(TOKENS["anna"], "192.0.2.2") == 303
    messages = [record.getMessage() for record in caplog.records if record.name == "kfm_dagster.console.session"]
    assert len(messages) == 2 * session.MOST_ATTEMPTS + 1
    assert all("192.0.2." in line and TOKENS["anna"] not in line and "xxx" not in line for line in messages)
    now = session.time.monotonic()
    monkeypatch.setattr(session.time, "monotonic", lambda: now + session.ATTEMPT_SECONDS)
    assert attempt(TOKENS["anna"]) == 303


def test_beyond_the_maximum_of_addresses_only_the_one_with_the_oldest_attempt_is_forgotten() -> None:
    attempts = session.SignInAttempts()
    others = [str(number) for number in range(session.MOST_ADDRESSES - 1)]
    for address in ["first"] * session.MOST_ATTEMPTS + ["second"] * session.MOST_ATTEMPTS + others:
        attempts.take(address)
    with pytest.raises(HTTPException):
        attempts.take("second")
    attempts.take("first")


def test_a_sign_in_returns_only_to_a_page_of_this_console(console: Console) -> None:
    client = console.browser()
    pages = {
        "http://testserver/units?status=quarantined&code=x": "/units?status=quarantined&code=x",
        **dict.fromkeys(
            ("http://testserver/sign-in", "http://evil.example/units", "http://testserver//evil.example", ""), "/"
        ),
    }
    for referer, to in pages.items():
        page = client.get("/sign-in", headers={"referer": referer}).text
        assert f'name="to" value="{escape(to)}"' in page, referer
        assert client.post("/sign-in", data={"token": TOKENS["anna"], "to": to}).headers["location"] == to
    for to in ("//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nx: y", "units", ""):
        assert client.post("/sign-in", data={"token": TOKENS["anna"], "to": to}).headers["location"] == "/", to


def test_a_console_without_tokens_is_read_only(console: Console) -> None:
    client = TestClient(console_app(console.pipeline, hosts=["testserver"]))
    assert client.post("/sign-in", data={"token": ""}).status_code == 403
    for path in every_form(console):
        assert client.post(path, data=REASON).status_code == 403
    page = client.get(f"/units/{console.quarantined[0]}", headers={"accept": "text/html"}).text
    assert "<form" not in page
    assert "kfm retry" in page


def test_a_unit_is_released_discarded_or_retried_once_and_logged(console: Console) -> None:
    anna = console.browser("anna")
    first, second, third = console.quarantined
    assert (
        anna.post(f"/units/{first}/release", data={"version": "2", **REASON}).headers["location"] == f"/units/{first}"
    )
    assert console.record(first).status is Status.PENDING
    for version, fields, status in (("2", REASON, 409), ("1", REASON, 409), ("x", REASON, 400)):
        assert anna.post(f"/units/{first}/release", data={"version": version, **fields}).status_code == status
    assert anna.post(f"/units/{second}/release", data={"version": "2", "reason": "x"}).status_code == 400
    assert anna.post(f"/units/{second}/discard", data={"version": "2", "reason": " "}).status_code == 400
    assert anna.post(f"/units/{second}/discard", data={"version": "2", "reason": "gone"}).status_code == 303
    [case] = own_tx(QuarantineCases(console.pipeline.database, clock=console.pipeline.clock)).of(second)
    assert (case.state, case.closed_by) == (CaseState.DISCARDED, "anna")
    assert anna.post(f"/units/{second}/release", data={"version": "2", **REASON}).status_code == 409
    [replay] = [anna.post(f"/units/{console.failed[0]}/retry", data={"reason": "again"}).headers["location"]]
    assert "0 of 1 units are done" in anna.get(replay).text
    # A form that shows an earlier version of the record is refused.
    for verb in ("release", "discard"):
        assert anna.post(f"/units/{third}/{verb}", data={"version": "1", **REASON}).status_code == 409
    assert console.record(third).version == 2
    assert console.decisions() == [("anna", "release"), ("anna", "discard"), ("anna", "replay_started")]


def test_a_number_out_of_range_is_refused(console: Console) -> None:
    anna = console.browser("anna")
    for path in ("/alerts/{}/acknowledge", "/proposals/{}/approve", "/proposals/{}/withdraw"):
        for number in ("0", "x", "1000000000", "9" * 25):
            refused = anna.post(path.format(number), data=REASON)
            assert "a whole number from 1 to 999999999" in refused.text
            assert refused.status_code == 400, (path, number)


@pytest.mark.parametrize(("query", "units"), [("status=failed", 2), ("status=failed&text=KTLX", 2)])
def test_the_units_of_a_filter_are_counted_then_replayed_and_the_replay_can_be_stopped(
    console: Console, query: str, units: int
) -> None:
    anna = console.browser("anna")
    plan = anna.get(f"/replays/dry-run?{query}").text
    assert f"eligible<b>{units}</b>" in plan
    assert [f'href="/units/{wal_id}"' in plan for wal_id in console.failed] == [True] * units
    assert console.decisions() == []
    fields = dict(part.split("=") for part in query.split("&"))
    replay = anna.post("/replays", data={**fields, **REASON}).headers["location"]
    engine = ReplayEngine(pipeline=console.pipeline)
    for change, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopped"), ("resume", "running")):
        assert anna.post(f"{replay}/{change}", data={"reason": change}).status_code == 303
        assert f'<span class="badge {state}">' in anna.get(replay).text
    engine.advance_all()
    page = anna.get(replay).text
    assert f"{units} pending" in page
    assert "failed before, now again" in anna.get(f"/units/{console.failed[0]}").text
    assert f'<progress aria-labelledby="progress" max="{units}" value="0">' in page


def test_each_status_that_needs_a_decision_has_its_button(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    # A failed unit needs a decision if it is not retried automatically.
    groups = [replace(group, retried=0) for group in own_tx(console.pipeline.ledger).failing()]
    monkeypatch.setattr(console.pipeline.ledger, "failing", lambda **_: groups)
    anna = console.browser("anna")
    front = anna.get("/", headers={"accept": "text/html"}).text
    assert f"<h1>{QUARANTINED + FAILED} units need a decision</h1>" in front
    buttons = re.findall(r'class="button" href="(\S*)">Retry (\d) (\w+) units<', front)
    assert [(units, status) for _, units, status in buttons] == [("2", "failed"), ("3", "quarantined")]
    for link, units, _ in buttons:
        assert f"eligible<b>{units}</b>" in anna.get(link).text


def test_the_units_of_a_filter_are_released_only_if_unchanged_since_the_dry_run(console: Console) -> None:
    anna = console.browser("anna")
    selection = {"dataset": "nexrad-l2", "status": "quarantined", "code": "looked_odd"}
    front = anna.get("/", headers={"accept": "text/html"}).text
    buttons = re.findall(r'href="(\S*)/dry-run\S*">Retry [0-9,]+ (\w+) units?<', front)
    assert buttons == [("/releases", "quarantined")]
    page = anna.get("/releases/dry-run", params=selection).text
    assert f"eligible<b>{QUARANTINED}</b>" in page
    fields = {**selection, **REASON, "seen": re.findall(r'name="seen" value="(\w+)"', page)[0]}
    assert anna.post("/releases", data={**fields, "seen": "other"}).status_code == 409
    assert anna.post("/releases", data={**fields, "change_ref": ""}).status_code == 400
    assert console.decisions() == []
    assert [f'href="/units/{wal_id}"' in page for wal_id in console.quarantined] == [True] * QUARANTINED
    live = anna.post("/releases", data=fields).headers["location"]
    assert live == "/units?dataset=nexrad-l2&status=pending&code=looked_odd&live=1"
    assert f'<h2 id="rows">{QUARANTINED} units</h2>' in anna.get(live).text
    pending = own_tx(console.pipeline.ledger).find(status=Status.PENDING, dataset="nexrad-l2")
    assert set(console.quarantined) <= {record.wal_id for record in pending}


def test_the_units_of_a_filter_are_discarded_only_if_unchanged_since_the_dry_run(console: Console) -> None:
    anna = console.browser("anna")
    first, *others = console.quarantined
    assert anna.post(f"/units/{first}/discard", data={"version": "2", "reason": "gone"}).status_code == 303
    selection = {"dataset": "nexrad-l2", "status": "quarantined", "code": "looked_odd"}

    def counted() -> tuple[str, str]:
        page = anna.get("/discards/dry-run", params=selection).text
        assert f"match<b>{QUARANTINED}</b>" in page
        [eligible], [seen] = re.findall(r"eligible<b>(\d+)</b>", page), re.findall(r'name="seen" value="(\w+)"', page)
        return eligible, seen

    eligible, seen = counted()
    assert eligible == "2"
    link = f"/discards/dry-run?{urlencode(selection)}"
    assert link in unescape(anna.get("/units", params=selection, headers={"accept": "text/html"}).text)
    fields = {**selection, "reason": "withdrawn by NOAA", "seen": seen}
    assert anna.post("/discards", data={**fields, "reason": " "}).status_code == 400
    assert anna.post("/discards", data={**fields, "status": "failed", "code": "missing_object"}).status_code == 400
    assert anna.post(f"/units/{others[0]}/release", data={"version": "2", **REASON}).status_code == 303
    refused = anna.post("/discards", data=fields)
    assert (refused.status_code, "dry run" in refused.text) == (409, True)
    cases = QuarantineCases(console.pipeline.database, clock=console.pipeline.clock)
    assert [case.state for case in own_tx(cases).of(others[1])] == [CaseState.OPEN]
    own_tx(console.pipeline.ledger).quarantine([others[0]], reason_code="looked_odd", decision=PERSON)
    _, seen = counted()
    done = anna.post("/discards", data={**fields, "seen": seen})
    assert (done.status_code, done.headers["location"]) == (303, "/decisions")
    newest = [own_tx(cases).of(wal_id)[0] for wal_id in others]
    assert {(case.state, case.closed_by, case.closing_reason) for case in newest} == {
        (CaseState.DISCARDED, "anna", "withdrawn by NOAA")
    }
    verbs = [action for actor, action in console.decisions() if actor == "anna"]
    assert verbs == ["discard", "release", "discard", "discard"]
    assert re.search(r"eligible<b>0</b>", anna.get("/discards/dry-run", params=selection).text)


def test_a_replay_of_a_filter_without_failed_units_or_with_too_many_to_examine_is_refused(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = console.browser("anna")
    for query in ("", "status=succeeded", "status=quarantined", "status=failed&text=nothing-has-it"):
        assert anna.get(f"/replays/dry-run?{query}").status_code == 400
    assert anna.post("/replays", data={"status": "failed", "days": "1", **REASON}).status_code == 400
    # A dry run needs no sign-in, so its cost must be bounded.
    assert anna.get("/replays/dry-run?status=failed&text=KTLX").status_code == 200
    monkeypatch.setattr(decisions, "MOST_EXAMINED", 1)
    refused = anna.get("/replays/dry-run?status=failed&text=KTLX")
    assert (refused.status_code, "too many to look through" in refused.text) == (400, True)


def test_a_dataset_is_switched_off_for_some_hours_and_on_again(console: Console) -> None:
    anna = console.browser("anna")
    assert anna.post("/datasets/nexrad-l2/switch-off", data={"reason": "bad sites", "hours": "2"}).status_code == 303
    [switch] = own_tx(console.pipeline.ledger.switches).engaged().values()
    assert (switch.engaged_by, switch.reason) == ("anna", "bad sites")
    assert (switch.expires_at - switch.engaged_at).total_seconds() == 7200
    assert "Switched off by anna" in anna.get("/datasets/nexrad-l2").text
    assert anna.post("/datasets/nexrad-l2/switch-off", data={"reason": "twice"}).status_code == 409
    assert anna.post("/datasets/nexrad-l2/switch-on", data={"reason": "over"}).status_code == 303
    assert own_tx(console.pipeline.ledger.switches).engaged() == {}
    assert anna.post("/datasets/all/switch-off", data={"reason": "stop"}).headers["location"] == "/decisions"
    assert "Every dataset is switched off by anna" in anna.get("/decisions").text
    assert anna.post("/datasets/x/switch-off", data={"reason": "stop"}).status_code == 404


@pytest.mark.clause("WSM-21")
def test_in_prod_a_release_needs_another_person_s_approval(console: Console) -> None:
    console.pipeline.settings = console.pipeline.settings.model_copy(update={"env": Environment.PROD})
    anna, bob = console.browser("anna"), console.browser("bob")
    wal_id = console.quarantined[0]
    released = anna.post(f"/units/{wal_id}/release", data={"version": "2", **REASON})
    assert released.headers["location"] == "/decisions"
    [proposal] = own_tx(console.pipeline.ledger.review).waiting()
    approve = f"/proposals/{proposal.proposal_id}/approve"
    assert approve not in anna.get("/decisions").text
    assert approve in bob.get("/decisions").text
    assert anna.post(approve, data=REASON).status_code == 409
    assert bob.post(approve, data={"reason": "seen"}).status_code == 400
    assert console.record(wal_id).status is Status.QUARANTINED
    assert bob.post(approve, data=REASON).status_code == 303
    assert console.record(wal_id).status is Status.PENDING
    assert console.decisions() == [("anna", "override_proposed"), ("bob", "override_approved"), ("anna", "release")]


def test_wrong_tokens_are_refused_and_not_shown() -> None:
    twice = (f"a={'x' * 16} a={'y' * 16}", f"a={'x' * 16} b={'x' * 16}")
    for tokens in ("anna", "anna=short", "=long-enough-for-a-token", *twice):
        with pytest.raises(ConfigurationError, match="KFM_CONSOLE_TOKENS") as refused:
            Sessions.of(SecretStr(tokens))
        assert "long-enough" not in str(refused.value)
        assert "short" not in str(refused.value)
