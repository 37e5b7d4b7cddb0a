"""Sections of a help page: found by their anchor, and formatted as plain text."""

from __future__ import annotations

import pytest

from mhnb.core.help_pages import find_section, list_sections, render_text

PAGE = """# Messages

Intro with [a link](other.md).

(order-mismatch)=
## OrderMismatch

Ranks launched **different** programs. See {ref}`the states <states>`, {ref}`tainted` and <https://example.org>.

### Fix

```text
# no heading
%mhjax restart --replay
```

(tainted)=
(results-may-be-wrong)=

## tainted

:::{note}
Results may be wrong.
:::

## Without an anchor

More.
"""


def test_anchors_have_titles() -> None:
    """Each anchor before a heading names that section; a heading without an anchor is not listed."""
    assert list_sections(PAGE) == {
        "order-mismatch": "OrderMismatch",
        "tainted": "tainted",
        "results-may-be-wrong": "tainted",
    }


@pytest.mark.parametrize("name", ["order-mismatch", "OrderMismatch", "order_mismatch"])
def test_section_ends_before_the_next(name: str) -> None:
    """A section has its own subsections and code, and nothing of the next section, not even its anchors."""
    section = find_section(PAGE, name)
    assert section is not None
    assert section.startswith("## OrderMismatch\n")
    assert section.endswith("%mhjax restart --replay\n```")


def test_unknown_section() -> None:
    """A name without a section is None, also if it is a title without an anchor."""
    assert find_section(PAGE, "without-an-anchor") is None


def test_text_has_no_markup() -> None:
    """Links become their text, code is indented, and headings are underlined."""
    assert render_text(find_section(PAGE, "order-mismatch") or "") == (
        "OrderMismatch\n=============\n\n"
        "Ranks launched different programs. See the states, tainted and https://example.org.\n\n"
        "Fix\n---\n\n    # no heading\n    %mhjax restart --replay"
    )


def test_directive_is_prose() -> None:
    """The text of a note is shown as text, below its kind."""
    assert render_text(find_section(PAGE, "tainted") or "").splitlines()[3:] == ["Note:", "Results may be wrong."]
