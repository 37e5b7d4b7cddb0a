"""What users need who cannot see a page, or not all of its colours: axe-core on a part of it, and contrasts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["contrast", "violations"]

_RUN = """async ([where, only, skip]) => {
  const runOnly = only.length ? only : ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice'];
  const rules = Object.fromEntries(skip.map(rule => [rule, {enabled: false}]));
  const found = await axe.run(where, {runOnly, rules: only.length ? {} : {region: {enabled: false}, ...rules}});
  const told = (rule, node) => `${rule.id}: ${node.html.slice(0, 200)} ${node.failureSummary.slice(0, 300)}`;
  return found.violations.flatMap(rule => rule.nodes.map(node => told(rule, node)));
}"""


def violations(page: Page, selector: str, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[str]:
    """List axe's findings inside every element that the selector matches, after asserting that there is one.

    Args:
        page: the page.
        selector: the elements.
        only: rules to check; all by default.
        skip: rules to leave out of all.
    """
    assert page.locator(selector).count() > 0, selector
    source = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    if not page.evaluate("() => 'axe' in window"):
        # JupyterLab has a module loader, which would take the script.
        page.evaluate(f"() => {{ const define = undefined, module = undefined, exports = undefined; {source} }}")
    found: list[str] = page.evaluate(_RUN, [selector, list(only), list(skip)])
    return found


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the contrast as WCAG 2 defines it."""

    def luminance(color: Sequence[float]) -> float:
        linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
