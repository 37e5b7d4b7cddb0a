"""axe-core on a part of a page: what somebody who does not see, or not all colours, would stumble over."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["violations"]

_RUN = """async (where) => {
  const found = await axe.run(where, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice'], rules: {region: {enabled: false}}});
  return found.violations.flatMap(v => v.nodes.map(n => `${v.id}: ${n.html.slice(0, 200)} ${n.failureSummary.slice(0, 300)}`));
}"""


def violations(page: Page, selector: str) -> list[str]:
    """List axe's findings inside every element that the selector names; that there is one is asserted."""
    assert page.locator(selector).count() > 0, selector
    source = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    if not page.evaluate("() => 'axe' in window"):
        # Lab has a module loader, which would catch it.
        page.evaluate(f"() => {{ const define = undefined, module = undefined, exports = undefined; {source} }}")
    found: list[str] = page.evaluate(_RUN, selector)
    return found
