"""HTML of one rank beside the output of other ranks, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mhnb.view.cell.html import format_cell_html
from tests.support.lab import open_chromium
from tests.support.view_samples import cell, out, shown
from tests.unit.view.test_sanitize import LEAKING, UNCLOSED

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.requires_part("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with open_chromium() as browser:
        yield browser


@pytest.mark.parametrize("view", ["fold", "tabs", "grid"])
def test_no_rank_hides_another(browser: Browser, view: str) -> None:
    """Whatever HTML a rank shows, the output of the others looks the same as without it."""
    page = browser.new_page(viewport={"width": 900, "height": 700})
    plain = _output_of_others(page, view, "<p>calm</p>")
    for html in [*UNCLOSED, *LEAKING]:
        assert _output_of_others(page, view, html) == plain, html
    page.close()


def _output_of_others(page: object, view: str, html: str) -> list[object]:
    result = cell([out("word of rank 0\n")], [shown(text__html=html, text__plain="x")], [out("word of rank 2\n")])
    stored = format_cell_html(result, view=view, uid="mhnb-a")  # type: ignore[arg-type]
    page.set_content("<!doctype html><body><div id=here></div><p id=after>after</p>")  # type: ignore[attr-defined]
    return page.evaluate(  # type: ignore[attr-defined,no-any-return]
        """html => {
          // As JupyterLab inserts it.
          document.getElementById('here').innerHTML = html;
          document.querySelectorAll('#here details').forEach(one => one.removeAttribute('name'));
          document.querySelectorAll('#here details').forEach(one => one.open = true);
          const words = [...document.querySelectorAll('#here pre')].filter(one => one.textContent.startsWith('word of'));
          return [...words, document.getElementById('after')].map(one => {
            one.scrollIntoView();
            const box = one.getBoundingClientRect();
            const top = document.elementFromPoint(box.x + 4, box.y + box.height / 2);
            return [one.textContent.trim(), getComputedStyle(one).visibility, box.height, top === one || one.contains(top)];
          });
        }""",
        stored,
    )
