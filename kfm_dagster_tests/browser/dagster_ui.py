"""The pages of the Dagster UI that the tests visit. Elements are located by the words on the screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, LocatorAssertions, Page

PICTURE_WIDTH, PICTURE_HEIGHT = 1600, 900
GROUP_HEIGHT = 260
"""Pixels for each group of assets; so the whole graph fits, with readable names."""


def expect(shown: Locator) -> LocatorAssertions:
    """Return Playwright's assertions, imported only when a browser is driven."""
    from playwright.sync_api import expect as expectations

    return expectations(shown)


@dataclass(frozen=True, kw_only=True)
class DagsterUi:
    """The actions of a person at the browser."""

    page: Page
    url: str

    def open_asset_graph(self, *, edges: int, groups: int) -> list[str]:
        """Open the global lineage with every group expanded, and return the texts of its boxes."""
        self.page.set_viewport_size({"width": PICTURE_WIDTH, "height": GROUP_HEIGHT * groups})
        self.page.goto(f"{self.url}/asset-groups")
        self.page.get_by_role("button", name="Hide navigation").click()
        explorer = self.page.get_by_placeholder("Jump to")
        self.page.locator("button:right-of(input[placeholder^='Jump to'])").first.click()
        expect(explorer).to_be_hidden()
        self.page.keyboard.press("Alt+e")  # "Expand all groups" of the graph's menu
        expect(self.page.locator("svg path[marker-end]")).to_have_count(edges)
        return [text.strip() for text in self.page.locator("foreignObject").all_text_contents()]

    def open_job(self, name: str) -> None:
        """Open a job's page."""
        self.page.goto(f"{self.url}/locations/kfm_dagster/jobs/{name}")

    def open_group(self, name: str, *, partition: str) -> None:
        """Open the page of a group of assets, with a partition chosen."""
        self.page.goto(f"{self.url}/locations/kfm_dagster/asset-groups/{name}/lineage?partition={partition}")

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name).first.click()

    def choose_partitions(self, keys: str) -> None:
        """Type partitions of any age into the open launch dialog."""
        self.click("Show all partitions")
        field = self.page.get_by_placeholder("ex: ")
        field.fill(keys)
        field.press("Enter")

    def follow(self, toast: str) -> None:
        """Follow the link of a launch's toast."""
        expect(self.page.get_by_text(toast)).to_be_visible()
        self.page.get_by_text("View", exact=True).click()
        self.page.wait_for_url("**/runs/**")

    def expect_success(self) -> None:
        """Wait until the run's page shows success."""
        expect(self.page.get_by_text("Success", exact=True)).to_be_visible()

    def open_partition(self, dataset: str, noun: str, partition: str) -> None:
        """Open an asset's page at a partition's latest materialisation."""
        self.page.set_viewport_size({"width": PICTURE_WIDTH, "height": PICTURE_HEIGHT})
        self.page.goto(f"{self.url}/assets/{dataset}/{noun}?view=partitions&partition={partition}")

    def labels(self) -> list[str]:
        """Return the labels of the metadata on an asset's page, in order."""
        table = self.page.locator("table", has=self.page.get_by_role("cell", name="outcome", exact=True)).first
        expect(table).to_be_visible()
        return table.locator("> tbody > tr > td:first-child").all_inner_texts()

    def shown(self, label: str) -> str:
        """Return the text of a metadata value on an asset's page."""
        row = self.page.locator("tr", has=self.page.get_by_role("cell", name=label, exact=True)).first
        return row.locator("td").nth(1).inner_text()

    def show_picture(self, name: str) -> Locator:
        """Open the dialog of a Markdown value, and return the picture in the dialog."""
        self.page.get_by_text("[Show Markdown]").first.click()
        picture = self.page.get_by_role("dialog").get_by_role("img", name=name)
        expect(picture).to_be_visible()
        return picture

    def screenshot(self) -> bytes:
        size = self.page.viewport_size
        # Only the middle of the page, because a picture in a document shows no more.
        top = (size["height"] - PICTURE_HEIGHT) / 2
        return self.page.screenshot(clip={"x": 0, "y": top, "width": PICTURE_WIDTH, "height": PICTURE_HEIGHT})
