"""HTML of one rank beside the output of other ranks."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from mhnb.view.sanitize import clean_html

UNCLOSED = [
    *(
        "<!-- x",
        "<textarea>x",
        "<title>x",
        "<xmp>x",
        "<plaintext>x",
        "<noscript>x",
        "<template>x",
        "<script>x",
        "<style>b{",
    ),
    *(
        "<details>x",
        "<details><summary>x",
        "<table><tr><td>x",
        "<table><caption>x",
        "<select><option>x",
        "<div><span><b>x",
    ),
    *(
        "</div></div></details></td></tr></table></pre>x",
        "<svg><style>*{display:none}",
        "<svg><title>x",
        "<![CDATA[ x",
        "<a href='x",
    ),
    *(
        "<base href='https://elsewhere/'>x",
        "<meta http-equiv=refresh content='0;url=https://elsewhere/'>x",
        "<button>x",
        "<form>x",
    ),
    *(
        "<frameset>x",
        "<iframe>x",
        "<noembed>x",
        "<math><annotation-xml>x",
        "<dialog open>x",
        "<ruby><rt>x",
        "<marquee>x",
        "<?x",
    ),
]

LEAKING = [
    "<style>body, pre, div { display: none !important }</style>",
    "<style>} body, pre { display: none !important } {</style>",
    "<style>a { content: '}' } pre { display: none !important }</style>",
    '<style>a { content: "\\" } pre { display: none } " }</style>',
    "<style>/* } */ * { visibility: hidden !important }</style>",
    "<style>a{content:'/*'} pre{display:none} b{content:'*/'} } pre{display:none}</style>",
    "<style>@scope (body) { pre { display: none !important } }</style>",
    "<style>@layer a { pre { display: none !important } } :root pre { display: none !important }</style>",
    "<style>@import 'https://elsewhere/a.css'; pre { display: none }</style>",
    "<style>:scope ~ *, :scope + * { display: none !important }</style>",
    "<style>html:has(pre) { display: none !important }</style>",
    "<svg><style>pre { display: none !important }</style></svg>",
    "<svg><style>&#125; pre { display: none !important }</style></svg>",
    "<p style='position:fixed;inset:0;background:red;z-index:9999'>over all</p>",
    "<p style='position:absolute;top:-900px;left:-900px;width:4000px;height:4000px;background:red;z-index:9999'>over all</p>",
    "<p style='margin-top:-900px;height:2000px;background:red;position:relative;z-index:9999'>over all</p>",
    "<link rel=stylesheet href='data:text/css,pre{display:none}'>",
]


class _OpenElements(HTMLParser):
    """A parser that records which elements are open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag not in ("br", "hr", "img", "input", "col", "source", "track", "area", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("html", UNCLOSED)
def test_open_elements_are_closed(html: str) -> None:
    """A fragment closes every element that it opens, and no other element."""
    reader = _OpenElements()
    reader.feed(clean_html(html))
    reader.close()
    assert reader.open == []


def test_markup_of_common_libraries_is_kept() -> None:
    """Tables with their own rules, sections that a checkbox opens, and drawings are kept unchanged."""
    pandas = (
        "<style scoped>.dataframe tbody tr th { vertical-align: top; }</style>"
        "<table border='1' class='dataframe'><tbody><tr><th>a</th>"
    )
    xarray = (
        "<svg><defs><symbol id='i' viewBox='0 0 32 32'><path d='M1 1'></path></symbol></defs></svg><style>:root { --xr: red }\n"
        '.xr-in:checked + label { content: "\\25BA"; color: var(--xr) }</style>'
        "<input id='s1' class='xr-in' type='checkbox' checked><label for='s1'>x</label><svg class='icon'><use xlink:href='#i'></use></svg>"
    )
    kept = clean_html(pandas) + clean_html(xarray)
    for part in (
        "@scope{.dataframe tbody tr th { vertical-align: top; }}",
        '<table border="1" class="dataframe">',
        ":scope { --xr: red }",
        'content: "\\25BA"',
        'type="checkbox" checked=""',
        '<label for="s1">',
        '<use xlink:href="#i">',
        'viewBox="0 0 32 32"',
    ):
        assert part in kept


def test_unparsable_style_sheet_is_dropped() -> None:
    """A style sheet is dropped if the end of its rules is uncertain, because they could apply to the page."""
    for rules in ("} b{}", "a{b:url(x y)}", "\\}", "a{content:'", "a{b:'\n'}", "a{]"):
        assert "<style" not in clean_html(f"<style>{rules}</style>")


def test_wide_content_takes_the_focus() -> None:
    """What may be wider than the page, and so scroll, is a stop for the keyboard with a name; other HTML is none."""
    assert clean_html("<table><tr><td>1</td></tr></table>").startswith(
        '<div tabindex="0" role="group" aria-label="display" '
    )
    assert "tabindex" not in clean_html("<b>1</b>")
