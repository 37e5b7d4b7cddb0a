"""The stored HTML in a real browser: tabs switch without a script, and colours stand out in both themes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mhnb.view.html import format_cell_html
from tests.parts import chromium
from tests.view.samples import cell, out

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser")]

TWO = cell(*[[out(f"said by rank {rank}\n")] for rank in range(3)])


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """An empty page without scripts, as strict as a viewer of notebooks can be."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser.new_page(java_script_enabled=False)
        browser.close()


def test_a_click_changes_the_tab(page: Page) -> None:
    """One tab is open at a time, on one row of tabs, and two cells do not disturb each other."""
    first, second = (format_cell_html(TWO, view="tabs", uid=uid) for uid in ("mhnb-a", "mhnb-b"))
    page.set_content(f"<div id='a'>{first}</div><div id='b'>{second}</div>")
    page.locator("#a summary").nth(2).click()
    assert [page.locator("#a pre").nth(rank).is_visible() for rank in range(3)] == [False, False, True]
    assert [page.locator("#b pre").nth(rank).is_visible() for rank in range(3)] == [True, False, False]
    tops = {box["y"] for rank in range(3) if (box := page.locator("#a summary").nth(rank).bounding_box())}
    assert len(tops) == 1


def test_without_its_style_sheet_the_tabs_are_a_list(page: Page) -> None:
    """An untrusted notebook loses <style> and name: the blocks open one by one."""
    html = format_cell_html(TWO, view="tabs", uid="mhnb-a")
    head, _, tail = html.partition("<style>")
    page.set_content(head + tail.partition("</style>")[2].replace(' name="mhnb-a"', ""))
    page.locator("summary").nth(1).click()
    assert [page.locator("pre").nth(rank).is_visible() for rank in range(3)] == [True, True, False]
