"""Sanitise a rank's HTML, so it can be shown among other output.

A parser closes the elements that the HTML leaves open. Scripts are removed, and style rules apply only inside the fragment.
This module does not know about outputs, or where the HTML is shown.
"""

from __future__ import annotations

import functools
import re

SCRIPTS_NOT_RUN = "scripts and frames from a rank are not run, because all ranks share the notebook's page"

_SCRIPT = re.compile(
    r"<(?:script|iframe|frame|object|embed|portal|animate|set)\b|<[^<>]*[\s\"'/]on[a-z]+\s*=|<[^<>]*=[\s\"']*javascript:",
    re.IGNORECASE,
)

_TEXT_TAGS = (
    "a abbr address article aside b bdi bdo big blockquote br caption center cite code col colgroup dd del details dfn dir div dl dt "
    "em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hgroup hr i ins kbd legend li main map mark menu nav nobr ol p pre q "
    "rp rt ruby s samp section small span strike strong sub summary sup table tbody td tfoot th thead time tr tt u ul var wbr"
)
_CONTROL_TAGS = "button datalist fieldset input label meter optgroup option output progress select"
_MEDIA_TAGS = "area audio img picture source track video"
_SVG_TAGS = (
    "svg g defs symbol use path circle ellipse line polygon polyline rect text tspan textPath image marker mask pattern clipPath "
    "linearGradient radialGradient stop desc filter feBlend feColorMatrix feComposite feDropShadow feFlood feGaussianBlur feMerge "
    "feMergeNode feOffset"
)
_TAGS = {*_TEXT_TAGS.split(), *_CONTROL_TAGS.split(), *_MEDIA_TAGS.split(), *_SVG_TAGS.split(), "style"}

_HTML_ATTRIBUTES = (
    "align alt bgcolor border cellpadding cellspacing checked class clear color cols colspan controls coords datetime dir disabled "
    "download face for frame headers height hidden high href hspace id label lang loop low max min multiple muted name nowrap open "
    "optimum placeholder poster readonly reversed role rows rowspan rules scope selected shape size span src start step style "
    "summary tabindex target title type usemap valign value vspace width"
)
_SVG_ATTRIBUTES = (
    "baseProfile clip-path clip-rule clipPathUnits cx cy d dominant-baseline dx dy fill fill-opacity fill-rule filter flood-color "
    "flood-opacity font-family font-size font-style font-weight fx fy gradientTransform gradientUnits in in2 k1 k2 k3 k4 "
    "letter-spacing marker-end marker-mid marker-start markerHeight markerUnits markerWidth mask mode offset opacity operator orient "
    "overflow pathLength patternContentUnits patternTransform patternUnits points preserveAspectRatio r refX refY result rotate rx "
    "ry shape-rendering spreadMethod stdDeviation stop-color stop-opacity stroke stroke-dasharray stroke-dashoffset stroke-linecap "
    "stroke-linejoin stroke-miterlimit stroke-opacity stroke-width text-anchor textLength transform values vector-effect version "
    "viewBox visibility x x1 x2 xlink:href xml:space xmlns xmlns:xlink y y1 y2"
)
_ATTRIBUTES = {"*": {*_HTML_ATTRIBUTES.split(), *_SVG_ATTRIBUTES.split()}}
_SCHEMES = {"http", "https", "mailto", "data"}

_STYLE = re.compile(r"<style[^>]*>(.*?)</style>", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r"\"(?:[^\"\\\n\r\f]|\\[^\n\r\f])*\"|'(?:[^'\\\n\r\f]|\\[^\n\r\f])*'")
_URL = re.compile(r"url\([\w:/.?=&%+,;#~@!*$-]*\)")
_OPENING_BRACKETS = {")": "(", "]": "[", "}": "{"}

_CONTAINER_STYLE = "position:relative;contain:layout paint;overflow-x:auto"
"""Style of the enclosing element: nothing is drawn outside its box, wherever the content's own styles position it."""

_MAY_BE_WIDE = re.compile(r"<(?:table|pre|svg|img)\b")


def contains_script(html: str) -> bool:
    """Return whether HTML contains a script, an event handler or a frame.

    >>> contains_script("<b onclick='go()'>x</b>"), contains_script("a < b, script")
    (True, False)
    """
    return _SCRIPT.search(html) is not None


@functools.lru_cache(maxsize=32)
def clean_html(html: str) -> str:
    """Return HTML as a closed fragment that changes nothing outside itself.

    >>> clean_html("<b>1<textarea>2")
    '<div style="position:relative;contain:layout paint;overflow-x:auto"><b>12</b></div>'
    """
    # nh3 takes a while to import, and most cells show no HTML.
    import nh3

    clean = nh3.clean(
        html,
        tags=_TAGS,
        clean_content_tags={"script", "template", "iframe", "object", "embed", "noembed", "noframes"},
        attributes=_ATTRIBUTES,
        generic_attribute_prefixes={"data-", "aria-"},
        url_schemes=_SCHEMES,
        link_rel=None,
    )
    # What is wider than the page scrolls by itself, also by keyboard.
    focus = ' tabindex="0" role="group" aria-label="display"' if _MAY_BE_WIDE.search(clean) else ""
    return f'<div{focus} style="{_CONTAINER_STYLE}">{_STYLE.sub(_scope_style, clean)}</div>'


def _scope_style(style: re.Match[str]) -> str:
    """Limit a style sheet to the elements beside it; remove unsafe ones."""
    rules = _COMMENT.sub(" ", style[1]).replace("<!--", " ").replace("-->", " ")
    if not _is_balanced(_URL.sub("", _STRING.sub('""', rules))):
        return ""
    return f"<style>@scope{{{rules.replace(':root', ':scope')}}}</style>"


def _is_balanced(rules: str) -> bool:
    """Return whether a style sheet's rules cannot end the block around them."""
    opened: list[str] = []
    for character in rules:
        if character in "([{":
            opened.append(character)
        elif character in _OPENING_BRACKETS and (not opened or opened.pop() != _OPENING_BRACKETS[character]):
            return False
    # A backslash, an unmatched quote, an open comment or an address without quotes may change what a bracket means.
    unsafe = re.search(r"\\|(?<!\")\"(?!\")|'|/\*|url\((?!\"\")", rules)
    return not opened and unsafe is None
