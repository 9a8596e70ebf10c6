"""A new user's walk in a real browser: after a demo, `kfm ui`, and from then on what the screens say and nothing else.

The home is what `kfm demo` leaves, worked by the resident worker, because a deployment for it would take a minute.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed
from kfm_dagster.demo.run import DEMO_ENVIRONMENT, demo_settings, feed_demo
from kfm_dagster.deployment.local import free_port
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.docs.console import shell, shell_environment
from kfm_dagster_tests.timeouts import HANG_SECONDS

pytestmark = [pytest.mark.browser, pytest.mark.deployment]

NEWCOMER = "newcomer"
REASON = "the object is whole now"
CHANGE = "INC-1"


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What `kfm ui` says to who has typed it."""

    console: str
    token: str
    mending: Sequence[str]


@pytest.fixture
def demo_home(chromium: Browser, contracts: ContractRegistry, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    with EmbeddedCloud() as cloud:
        cloud.provision(contracts)
        pipeline = Pipeline.open(demo_settings(home))
        feed_demo(pipeline, Feed(cloud, contracts), None)
        pipeline.close()
        variables = {**cloud.environment(), **DEMO_ENVIRONMENT, "KFM_HOME": str(home)}
        done = shell("kfm worker --until-empty", tmp_path, seconds=HANG_SECONDS, variables=variables)
    assert done.returncode == 0, done.stdout
    return home


@contextmanager
def kfm_ui(home: Path) -> Iterator[Screen]:
    """Type `kfm ui`, read what it says, and end it as Ctrl-C does."""
    variables = {"KFM_HOME": str(home), "KFM_ACTOR": NEWCOMER}
    log = home.parent / "ui.log"
    with log.open("wb") as output:
        typed = subprocess.Popen(
            [Path(sys.executable).parent / "kfm", "ui", "--port", str(free_port())],
            env=shell_environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _read(typed, log)
    finally:
        typed.send_signal(signal.SIGINT)
        typed.wait(timeout=HANG_SECONDS)


def _read(typed: subprocess.Popen[bytes], log: Path) -> Screen:
    until = time.monotonic() + HANG_SECONDS
    while "curl" not in (said := log.read_text(encoding="utf-8")):
        assert typed.poll() is None, said
        assert time.monotonic() < until, said
        time.sleep(0.2)
    console, token = re.search(r"the console, .*: (\S+)", said), re.search(rf"as {NEWCOMER} with the token (\S+)", said)
    assert console is not None
    assert token is not None
    return Screen(console=console[1], token=token[1], mending=re.findall(r"^ +(curl .*)$", said, re.MULTILINE))


def open_from_the_front(page: Page, matter: str) -> None:
    """Follow a line of "What to look at", and the one unit that it leads to."""
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("region", name="What to look at").get_by_role("link", name=matter).click()
    page.get_by_role("region", name="Units").locator("tbody").get_by_role("link").first.click()


@pytest.mark.timeout(2 * HANG_SECONDS + 120)
def test_a_newcomer_finds_why_each_unit_failed_mends_its_object_lets_it_in_and_sees_it_succeed_and_who_decided(
    chromium: Browser, demo_home: Path
) -> None:
    with kfm_ui(demo_home) as screen, chromium.new_context() as context:
        page = context.new_page()
        page.goto(screen.console)
        matters = page.get_by_role("region", name="What to look at").locator("tr", has_text="quarantined")
        expect(matters).to_have_count(2)
        whys = {"size_mismatch: ": "the provider's next writing", "missing_object: ": "wait for the provider"}
        units = {}
        for matter in matters.get_by_role("link").all_inner_texts():
            open_from_the_front(page, matter)
            [why] = [code for code in whys if code in page.locator("p.message.error").inner_text()]
            expect(page.get_by_text(whys.pop(why))).to_be_visible()
            key = page.get_by_role("heading", level=1).inner_text()
            # The provider's part, by the command that is there to copy; it names the same object.
            [command] = [line for line in screen.mending if line.endswith(key)]
            mended = shell(command, demo_home.parent, seconds=60, variables={"NO_PROXY": "127.0.0.1"})
            assert (mended.returncode, mended.stdout) == (0, "")
            if page.get_by_role("link", name="sign in", exact=True).count():
                page.get_by_role("link", name="sign in", exact=True).click()
                page.get_by_label("Your token").fill(screen.token)
                page.get_by_role("button", name="Sign in").click()
            page.get_by_text("Release: one more attempt").click()
            form = page.get_by_role("form", name="Release")
            form.get_by_label("Reason").fill(REASON)
            form.get_by_label("Change or incident").fill(CHANGE)
            form.get_by_role("button", name="Release").click()
            expect(page.get_by_text("It waits for a run")).to_be_visible()
            units[key] = page.url
        assert whys == {}
        for url in units.values():
            page.goto(url)
            page.get_by_role("link", name="Live view").click()
            expect(page.locator("main .badge").first).to_have_text("succeeded")
            expect(page.get_by_role("link", name="Item as JSON")).to_be_visible()
            decision = page.get_by_role("region", name="Decisions").locator("tr", has_text=REASON)
            expect(decision).to_contain_text(NEWCOMER)
        page.get_by_role("link", name="Decisions").click()
        entries = page.get_by_role("region", name="Governance log").locator("tr", has_text=REASON)
        expect(entries).to_have_count(2)
        for entry in entries.all():
            for said in ("release", NEWCOMER, CHANGE):
                expect(entry).to_contain_text(said)
        page.get_by_role("link", name="Overview").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Nothing waits for anybody")
        page.get_by_role("link", name="1 message rejected within a day").click()
        page.get_by_role("region", name="Rejected messages").get_by_role("link").click()
        expect(page.locator("pre")).to_contain_text("NewGOES16Object")
