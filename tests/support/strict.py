"""What a site that shows notebooks leaves of an output's HTML: the public allow list of GitHub's html-pipeline.

It decides what is dropped. It refuses to know our markup.
Source: https://github.com/gjtorikian/html-pipeline, `sanitization_filter.rb`. GitHub renders notebooks by a service of its own, whose
list is not public; users report of it that scripts, `<style>` with what is in it and inline styles are gone, and that pictures
which are `data:` addresses are shown. So those are kept here, which the list itself does not say, and `id` is not.
"""

from __future__ import annotations

import nh3

__all__ = ["keep_allowed"]

_ELEMENTS = {
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "br",
        "b",
        "i",
        "strong",
        "em",
        "a",
        "pre",
        "code",
        "img",
        "tt",
        "div",
        "ins",
    ),
    *("del", "sup", "sub", "p", "ol", "ul", "table", "thead", "tbody", "tfoot", "blockquote", "dl", "dt", "dd", "kbd"),
    *("q", "samp", "var", "hr", "ruby", "rt", "rp", "li", "tr", "td", "th", "s", "strike", "summary", "details"),
    *("caption", "figure", "figcaption", "abbr", "bdo", "cite", "dfn", "mark", "small", "span", "time", "wbr"),
}
# Of those it allows on every element, the ones that our outputs and the common libraries write.
_EVERYWHERE = {
    *("align", "alt", "aria-describedby", "aria-hidden", "aria-label", "aria-labelledby", "border", "cellpadding"),
    *("cellspacing", "colspan", "dir", "disabled", "headers", "height", "hreflang", "label", "lang", "name", "nowrap"),
    *("open", "role", "rowspan", "scope", "span", "start", "summary", "tabindex", "title", "type", "valign", "value"),
    "width",
}
_ATTRIBUTES = {"*": _EVERYWHERE, "a": {"href"}, "img": {"src", "longdesc"}, "div": {"itemscope", "itemtype"}}


def _keep(tag: str, attribute: str, value: str) -> str | None:
    """Pictures may carry their own bytes; links may not."""
    return None if tag != "img" and attribute == "href" and value.startswith("data:") else value


def keep_allowed(html: str) -> str:
    """Drop every element and attribute that is not on the list; of what is dropped the text stays, styles and scripts apart."""
    return nh3.clean(
        html,
        tags=_ELEMENTS,
        attributes=_ATTRIBUTES,
        attribute_filter=_keep,
        url_schemes={"http", "https", "mailto", "data"},
        clean_content_tags={"style", "script"},
        link_rel=None,
    )
