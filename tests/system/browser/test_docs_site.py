"""The documentation site, as `make docs` builds it but without executing the lessons: in Chromium, light and dark.

It is built once for this module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.axe import violations
from tests.support.lab import open_chromium
from tests.support.source import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser"), pytest.mark.timeout(900)]

# Generated, and without text of ours.
_OTHER_PAGES = ("genindex.html", "py-modindex.html", "search.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning fails the build."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, str(ROOT / "docs" / "build.py"), "--without-outputs", "--output", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with open_chromium() as browser:
        yield browser


def _pages(site: Path) -> list[Path]:
    """Return all pages with text of ours."""
    return [
        page for page in sorted(site.rglob("*.html")) if "_static" not in page.parts and page.name not in _OTHER_PAGES
    ]


def _find_faults(page: Page, path: Path, *, whole: bool) -> list[str]:
    """Open a page and return what axe finds, what the page loads, and whether it scrolls sideways.

    Args:
        page: the browser's page.
        path: the file to open.
        whole: check what is around the text, too, and the contrast of colours in both themes, which takes most of the time.
    """
    loaded: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            loaded.append(f"loads {request.url}")

    page.on("request", note)
    page.goto(path.as_uri(), wait_until="load")
    faults = violations(page, "body") if whole else violations(page, "article", skip=["color-contrast"])
    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        faults.append("is wider than the window")
    if whole:
        page.evaluate("() => { document.documentElement.dataset.theme = 'dark'; }")
        faults += [f"dark: {fault}" for fault in violations(page, "body", only=["color-contrast"])]
    page.remove_listener("request", note)
    return loaded + faults


def test_pages_are_accessible_and_load_nothing(site: Path, browser: Browser) -> None:
    """axe finds nothing in any article, a page loads nothing from the network, and none scrolls sideways.

    What is around the article, and the contrast, are checked on every twelfth page: the theme makes them for all pages alike.
    """
    # The theme animates changes of colour unless the user wants less motion.
    page = browser.new_page(color_scheme="light", viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    faults = []
    for at, path in enumerate(_pages(site)):
        faults += [f"{path.relative_to(site)}: {fault}" for fault in _find_faults(page, path, whole=at % 12 == 0)]
    assert not faults, "\n".join(faults)


def test_inputs_can_be_copied(site: Path, browser: Browser) -> None:
    """A button copies a cell as it is, and of a terminal's lines the commands alone; an output has no button."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    copied = []
    for name, block in (("quickstart.html", "div.highlight-ipython"), ("install.html", "div.highlight-console")):
        page.goto((site / name).as_uri(), wait_until="load")
        page.locator(block).first.get_by_role("button", name="Copy").click()
        page.get_by_role("button", name="Copied").wait_for()
        copied.append(page.evaluate("navigator.clipboard.readText()"))
        assert page.locator("div.highlight-text").get_by_role("button").count() == 0
    assert copied == ["%load_ext mhnb\n%mhjax start", "mhnb doctor"]
    context.close()
