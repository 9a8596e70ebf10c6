"""The console in a real browser: every page on a desktop and on a phone, and a decision by keyboard."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.console.app import console_app
from kfm_dagster.demo.sample_day import SAMPLE_DAY, sample_objects
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import Delivery
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.rejections import Rejection
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster_tests.alerts.recorded import open_alert
from kfm_dagster_tests.browser.dagster_ui import expect
from kfm_dagster_tests.browser.pictures import keep_picture
from kfm_dagster_tests.console import serving
from kfm_dagster_tests.factories import bring, envelope
from kfm_dagster_tests.integration.chain import Clock, good, open_pipeline, put, run_chain
from kfm_dagster_tests.transactions import own_tx

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.one_database]

TOKEN = "annas-token-of-20-chars"
WCAG_AA = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
REJECTED = "2f6ea231-4157-48d2-976d-1df76d5f9ca6"
DEPTHS = {"kfm-nodd-primary": 12, "kfm-nodd-dlq": 0}
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 960}
MOST_HEIGHT = 1200
"""Maximum height in pixels of a picture for the documentation; the front page's map still fits."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A console over the sample day of three datasets, with one unit quarantined by a person."""

    pipeline: Pipeline
    url: str
    quarantined: NoddWalRecord
    succeeded: NoddWalRecord

    @property
    def pages(self) -> list[str]:
        return [
            "/",
            "/units",
            "/units?status=quarantined",
            f"/units/{self.quarantined.wal_id}",
            f"/units/{self.succeeded.wal_id}",
            f"/runs/{self.succeeded.ingest_run_id}",
            "/failures",
            "/gaps",
            "/rejected",
            f"/rejected/{REJECTED}",
            "/alerts",
            "/datasets/goes-abi",
            "/replays",
            "/replays/dry-run?status=failed",
            "/discards/dry-run?status=quarantined",
            "/releases/dry-run?status=quarantined",
            "/decisions",
            "/states",
            "/validate",
            "/sign-in",
            "/none",
        ]


@pytest.fixture(scope="module")
def served(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("console")
    clock = Clock()
    pipeline = open_pipeline(root / "home", root / "objects", console_tokens=SecretStr(f"anna={TOKEN}"))
    pipeline.clock = clock
    put(root / "objects", [good(item.bucket, item.key, item.content) for item in sample_objects()])
    for number, dataset in enumerate(("goes-abi", "nexrad-l2", "hrrr"), 1):
        run_chain(pipeline, dataset, SAMPLE_DAY.isoformat(), f"{number:08}-1111-4111-8111-111111111111")
    landed = pipeline.landing.land([SqsMessage(message_id=REJECTED, body="{" + 400 * "long")])
    delivery = Delivery(message_id=REJECTED, queue="q", receipt_handle="r", landing_sha256=landed)
    own_tx(pipeline.deliveries).record([delivery])
    own_tx(pipeline.deliveries).reject(
        [Rejection(message_id=REJECTED, record_index=0, reason_code="malformed_json", detail="no JSON")]
    )
    open_alert(pipeline.database, AlertRule.RETRY_STORM, "all stages", run_id=str(uuid.UUID(int=1)), at=clock())
    unit = envelope(1)
    bring(pipeline.ledger, "failed", [unit])
    own_tx(pipeline.ledger).quarantine(
        [unit.wal_id], reason_code="looked_odd", decision=Decision(actor="bob", reason="a site that moved")
    )
    clock.forward(14 * 60)
    [quarantined] = own_tx(pipeline.ledger).find(status=Status.QUARANTINED, code="missing_object")
    [succeeded, *_] = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED, dataset="goes-abi")
    with serving.served(console_app(pipeline, depths=lambda: DEPTHS, deciding=pipeline)) as port:
        url = f"http://127.0.0.1:{port}"
        yield Served(pipeline=pipeline, url=url, quarantined=quarantined, succeeded=succeeded)
    pipeline.close()


@contextmanager
def page_of(chromium: Browser, served: Served, **options: object) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page, and the errors and warnings in the browser's console."""
    context = chromium.new_context(base_url=served.url, **options)  # type: ignore[arg-type]
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.extend([message.text] * (message.type in {"error", "warning"})))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page, complaints
    context.close()


def sign_in(page: Page) -> None:
    page.goto("/sign-in")
    page.get_by_label("Your token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("anna", exact=True)).to_be_visible()


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESK), ("dark", PHONE)], ids=["desk", "phone"])
def test_every_page_is_accessible_fits_the_screen_and_has_no_errors(
    chromium: Browser, served: Served, scheme: str, viewport: dict[str, int]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with page_of(chromium, served, viewport=viewport, color_scheme=scheme) as (page, complaints):
        sign_in(page)
        wrong: list[tuple[str, str, object]] = []
        for path in served.pages:
            page.goto(path)
            page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            violations = Axe().run(page, options=WCAG_AA).response["violations"]
            wrong += [(path, violation["id"], violation["nodes"][0]["html"]) for violation in violations]
            broken = page.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)")
            wrong += [(path, "a broken picture", source) for source in broken]
            wrong += [(path, "it scrolls sideways", wide)] if wide[0] > wide[1] else []
        assert wrong == []
        # Chromium reports the 404 of /none.
        assert [line for line in complaints if "404" not in line] == []


def test_the_pictures_of_the_documentation_can_be_made(chromium: Browser, served: Served, tmp_path: Path) -> None:
    pages = {
        "console": "/",
        "console-unit": f"/units/{served.quarantined.wal_id}",
        "console-item": f"/units/{served.succeeded.wal_id}",
        "console-retry": "/releases/dry-run?status=quarantined",
        "console-alert": "/alerts",
        "console-decisions": "/decisions",
    }
    with page_of(chromium, served, viewport=DESK, color_scheme="light") as (page, _):
        sign_in(page)
        for name, path in pages.items():
            page.goto(path)
            bottom = page.evaluate("document.querySelector('main').lastElementChild.getBoundingClientRect().bottom")
            size = {"width": DESK["width"], "height": min(MOST_HEIGHT, bottom + 16)}
            keep_picture(page.screenshot(clip={"x": 0, "y": 0, **size}, full_page=True), f"{name}.png", tmp_path)


def test_a_quarantined_unit_is_reached_from_the_front_page_and_released_by_keyboard(
    chromium: Browser, served: Served
) -> None:
    with page_of(chromium, served, viewport=DESK) as (page, _):
        page.goto("/")
        expect(page.get_by_role("heading", level=1)).to_have_text("1 unit needs a decision")
        page.get_by_role("link", name="Retry 1 quarantined unit").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Retry 1 unit")
        page.go_back()
        page.get_by_role("link", name="nexrad-l2 quarantined: missing_object").click()
        page.get_by_role("link", name=served.quarantined.object_uri.rpartition("/")[2]).click()
        expect(page.get_by_text("kfm retry")).to_be_visible()
        assert page.locator("form[action$='/release']").count() == 0
        sign_in(page)
        page.goto(f"/units/{served.quarantined.wal_id}")
        page.get_by_text("Retry: one more attempt").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("the site is in the contract now")
        page.keyboard.press("Tab")
        page.keyboard.type("INC-7")
        page.keyboard.press("Enter")
        expect(page.locator("main .badge").first).to_have_text("pending")
        expect(page.get_by_role("region", name="Decisions").get_by_text("INC-7")).to_be_visible()
    [entry, *_] = own_tx(served.pipeline.ledger.log).entries(wal_id=served.quarantined.wal_id)
    assert (entry.actor, entry.action, entry.change_ref) == ("anna", "release", "INC-7")
