"""axe-core on a part of a page: problems for users who cannot see it, or not all of its colours."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["violations"]

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
