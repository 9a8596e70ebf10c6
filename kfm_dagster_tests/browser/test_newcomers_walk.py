"""A new user's walk, guided by the screens alone: `git clone`, `make demo`, `make ui`.

The clone uses this environment's packages; CI installs them from a clean checkout.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kfm_dagster.deployment.local import free_port
from kfm_dagster_tests.browser.dagster_ui import expect
from kfm_dagster_tests.docs.console import session, shell
from kfm_dagster_tests.timeouts import HANG_SECONDS, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.deployment]

ROOT = Path(__file__).resolve().parents[2]
NEWCOMER = "newcomer"
REASON = "the object is whole now"
CHANGE = "INC-1"
OPENING = re.compile(r"^    \. \.kfm/samples\.env\n    python .*$", re.MULTILINE)
"""The lines of README that open a field in xarray."""


@dataclass(frozen=True, kw_only=True)
class Screen:
    """The values printed by `make ui`."""

    console: str
    token: str
    mending: Sequence[str]


def newcomers(checkout: Path) -> dict[str, str]:
    """The variables of a new user's shell."""
    return {
        "KFM_ACTOR": NEWCOMER,
        # The clone's package takes precedence over the installed one; an install would change this environment.
        "PYTHONPATH": str(checkout),
        # Otherwise the walk's commands would be sub-makes of the tests' own `make test`.
        "MAKEFLAGS": "",
        "MAKELEVEL": "0",
    }


@pytest.fixture
def checkout(chromium: Browser, tmp_path: Path) -> Path:
    """A clone of this checkout with its uncommitted changes and with all packages installed."""
    git = f"git -C {shlex.quote(str(ROOT))}"
    prefix = shell(f"{git} rev-parse --show-prefix", tmp_path, seconds=HANG_SECONDS)
    if (prefix.returncode, prefix.stdout) != (0, "\n"):
        pytest.skip(f"this checkout is no git repository that can be cloned: {prefix.stdout.strip()}")
    changes = f"{git} diff --binary --no-color --no-ext-diff --src-prefix=a/ --dst-prefix=b/ HEAD > changes"
    apply = "if [ -s changes ]; then git -C kfm_dagster apply ../changes; fi"
    typed = f"git clone --quiet {shlex.quote(str(ROOT))} kfm_dagster && {changes} && {apply}"
    cloned = shell(typed, tmp_path, seconds=HANG_SECONDS)
    assert cloned.returncode == 0, cloned.stdout
    borrow_environment(tmp_path / "kfm_dagster")
    return tmp_path / "kfm_dagster"


def borrow_environment(clone: Path) -> None:
    """Link this environment's commands into a clone, and mark them as up to date.

    The mark is in the clone, since nothing is written into the environment. It is newer than the clone's files;
    otherwise make would install.
    """
    (clone / ".venv").mkdir()
    (clone / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (clone / ".venv" / ".installed").touch()
    for target in ("demo", "ui"):
        recipe = shell(f"make --dry-run {target}", clone, seconds=HANG_SECONDS, variables=newcomers(clone)).stdout
        assert recipe.split() == [".venv/bin/kfm", target], f"make {target} would do something else, such as install"


@contextmanager
def make_ui(checkout: Path) -> Iterator[Screen]:
    """Type `make ui`, read its output, and end it as Ctrl-C does.

    Only the port differs from that of a new user, because 3000 and 3001 are perhaps in use on this machine.
    """
    log, command = checkout / "ui.log", ["make", "ui", f"UI_ARGS=--port {free_port()}"]
    # A terminal sends Ctrl-C to all processes that were started in it.
    with session(command, checkout, log, newcomers(checkout), end=signal.SIGINT) as typed:
        yield _read(typed, log)


def _read(typed: subprocess.Popen[str], log: Path) -> Screen:
    until(lambda: "--mend" in log.read_text(encoding="utf-8") or typed.poll() is not None, log.read_text)
    text = log.read_text(encoding="utf-8")
    assert typed.poll() is None, text
    console, token = re.search(r"the console, .*: (\S+)", text), re.search(rf"as {NEWCOMER} with the token (\S+)", text)
    return Screen(console=console[1], token=token[1], mending=re.findall(r"^ +(kfm demo .*)$", text, re.MULTILINE))


def open_from_the_front(page: Page, matter: str) -> None:
    """Follow a line of "What to look at", then the link to the first of the units."""
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("region", name="What to look at").get_by_role("link", name=matter).click()
    page.get_by_role("region", name="Units").locator("tbody").get_by_role("link").first.click()


@pytest.mark.timeout(2 * HANG_SECONDS + 120)
def test_a_newcomer_finds_why_units_failed_repairs_the_objects_retries_them_and_sees_them_succeed(
    chromium: Browser, checkout: Path
) -> None:
    shown = shell("make demo", checkout, seconds=HANG_SECONDS, variables=newcomers(checkout))
    assert shown.returncode == 0, shown.stdout
    with make_ui(checkout) as screen, chromium.new_context() as context:
        page = context.new_page()
        page.goto(screen.console)
        matters = page.get_by_role("region", name="What to look at").locator("tr", has_text="quarantined")
        expect(matters).to_have_count(2)
        whys = {"size_mismatch: ": "the provider's next upload", "missing_object: ": "wait for the provider"}
        units = {}
        for matter in matters.get_by_role("link").all_inner_texts():
            open_from_the_front(page, matter)
            [why] = [code for code in whys if code in page.locator("p.message.error").inner_text()]
            expect(page.get_by_text(whys.pop(why))).to_be_visible()
            key = page.get_by_role("heading", level=1).inner_text()
            # The printed command acts as the provider, who uploads the complete object.
            [command] = screen.mending
            mended = shell(command, checkout, seconds=60, variables=newcomers(checkout))
            assert (mended.returncode, f"/{key} is whole\n" in mended.stdout) == (0, True)
            if page.get_by_role("link", name="sign in", exact=True).count():
                page.get_by_role("link", name="sign in", exact=True).click()
                page.get_by_label("Your token").fill(screen.token)
                page.get_by_role("button", name="Sign in").click()
            page.get_by_text("Retry: one more attempt").click()
            form = page.get_by_role("form", name="Retry")
            form.get_by_label("Reason").fill(REASON)
            form.get_by_label("Change or incident").fill(CHANGE)
            form.get_by_role("button", name="Retry").click()
            # The unit waits for a run, or the daemon has already started one.
            expect(page.locator("main .badge").first).not_to_have_text("quarantined")
            units[key] = page.url
        assert whys == {}
        for url in units.values():
            page.goto(url)
            page.get_by_role("link", name="Live view").click()
            expect(page.locator("main .badge").first).to_have_text("succeeded")
            expect(page.get_by_role("link", name="Item as JSON")).to_be_visible()
            decision = page.get_by_role("region", name="Decisions").locator("tr", has_text=REASON)
            expect(decision).to_contain_text(NEWCOMER)
        [lines] = OPENING.findall((checkout / "README.md").read_text(encoding="utf-8"))
        shell(textwrap.dedent(lines), checkout, seconds=HANG_SECONDS, variables=newcomers(checkout))
        assert (checkout / "field.png").read_bytes().startswith(b"\x89PNG")
        page.get_by_role("link", name="Decisions").click()
        entries = page.get_by_role("region", name="Governance log").locator("tr", has_text=REASON)
        expect(entries).to_have_count(2)
        for entry in entries.all():
            for text in ("release", NEWCOMER, CHANGE):
                expect(entry).to_contain_text(text)
        page.get_by_role("link", name="Overview").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Nothing needs attention")
        page.get_by_role("link", name="1 message rejected within a day").click()
        page.get_by_role("region", name="Rejected messages").get_by_role("link").click()
        expect(page.locator("pre")).to_contain_text("NewGOES16Object")
