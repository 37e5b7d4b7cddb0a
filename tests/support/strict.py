"""The HTML that remains of an output on a site that shows notebooks, by the public allow list of GitHub's html-pipeline.

It decides what is dropped, and does not depend on the markup of mhnb.
Source: https://github.com/gjtorikian/html-pipeline, `sanitization_filter.rb`. GitHub renders notebooks with a service of its own,
whose list is not public. According to its users, it removes scripts, `<style>` with its content and inline styles, and shows
pictures with `data:` addresses. So such pictures are kept here, which the list itself does not say, and `id` is not.
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
# The attributes allowed on every element that mhnb's outputs and the common libraries write.
_GLOBAL_ATTRIBUTES = {
    *("align", "alt", "aria-describedby", "aria-hidden", "aria-label", "aria-labelledby", "border", "cellpadding"),
    *("cellspacing", "colspan", "dir", "disabled", "headers", "height", "hreflang", "label", "lang", "name", "nowrap"),
    *("open", "role", "rowspan", "scope", "span", "start", "summary", "tabindex", "title", "type", "valign", "value"),
    "width",
}
_ATTRIBUTES = {"*": _GLOBAL_ATTRIBUTES, "a": {"href"}, "img": {"src", "longdesc"}, "div": {"itemscope", "itemtype"}}


def _filter_attribute(tag: str, attribute: str, value: str) -> str | None:
    """Return the attribute's value unless it is a link to `data:`; only pictures may contain their own bytes."""
    return None if tag != "img" and attribute == "href" and value.startswith("data:") else value


def keep_allowed(html: str) -> str:
    """Drop every element and attribute that is not on the list; text of dropped elements stays, except styles and scripts."""
    return nh3.clean(
        html,
        tags=_ELEMENTS,
        attributes=_ATTRIBUTES,
        attribute_filter=_filter_attribute,
        url_schemes={"http", "https", "mailto", "data"},
        clean_content_tags={"style", "script"},
        link_rel=None,
    )
