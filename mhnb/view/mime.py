"""Format one nbformat output as HTML or text, and log paths.

Decides which MIME type of an output is shown. An embedded image is a `data:` URI, so that it is stored with the notebook.
A widget's view is never stored, because without its kernel it is an error message.

The path of a log file is a link if JupyterLab can open it, otherwise a path to copy. A browser opens no `file://` link from a page
that a server delivered. JupyterLab opens a link relative to the notebook, but shows no hidden folder and nothing above the folder
that it was started in. mhnb only knows whether a file is below the notebook's folder.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from html import escape, unescape
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import quote

from mhnb.core.messages import shorten_text
from mhnb.core.output.rich import (
    OBJECT_REPR,
    describe_figure,
    find_figure_type,
    is_drawn_by_scripts,
    is_hidden_html,
    join_text,
)
from mhnb.core.output.tables import find_unwrapped
from mhnb.sharding.layout import format_nbytes
from mhnb.types import Output
from mhnb.view.ansi import ansi_to_html, strip_ansi
from mhnb.view.sanitize import SCRIPTS_NOT_RUN, clean_html, contains_script

MAX_RICH_NBYTES = 8 * 2**20
"""A figure or HTML larger than this is stored as its text, with a note."""

PRE_STYLE = "font-family:monospace;margin:0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
_UNWRAPPED_STYLE = "font-family:monospace;margin:0;white-space:pre;overflow-x:auto;line-height:normal"
"""Style of a table in text, which scrolls where it is wider than the page. Its lines have no gap, so that upright lines meet."""
STDERR_STYLE = "background-color:rgba(230,90,80,0.14);padding:1px 4px"
_MAX_NARROW_CHARS = 48
"""Text up to this width fits almost everywhere, so it needs no focus to be scrolled by keyboard."""
_TAG = re.compile(r"<(/?)[a-z][^<>]*>")
_DIFFERENCE = re.compile(r"^[+-] |   ← elsewhere$| ← .* elsewhere$")
"""What marks the lines of a table that differs from the majority's."""
_BLANK_LINE = re.compile(r"(?<=\n)([ \t]*)\n")
_SOURCE_MIMES = ("text/plain", "text/markdown", "text/latex", "application/json", "application/geo+json")
_SCRIPT_MIME = "application/javascript"
_MAX_SCRIPT_LINES = 12
"""Maximum number of lines of a script that are shown, enough to recognise it."""
_MAX_SCRIPT_CHARS = 400
_SIZE = re.compile(r"\s*\+?(\d{1,6})(?:\.\d*)?(?:px)?(%?)\s*")


def output_to_html(output: Output, *, alt: str = "") -> str:
    """Format one output as an HTML fragment.

    `alt` describes an image to users who do not see it; its type by default.

    >>> output_to_html({"output_type": "stream", "name": "stdout", "text": "a<b"})[-18:]
    'a&lt;b</pre></div>'
    """
    kind = output["output_type"]
    if kind == "stream":
        style = STDERR_STYLE if output["name"] == "stderr" else ""
        return format_pre(join_text(output["text"]).removesuffix("\n"), style=style)
    if kind == "error":
        return format_pre("\n".join(output["traceback"]))
    data, metadata = output.get("data", {}), output.get("metadata")
    if (form := find_figure_type(data)) is not None:
        description = escape(describe_figure(form, data[form]), quote=False)
        return f'<div>{description} <span style="opacity:.65">· drawn below its cell</span></div>'
    too_large = ""
    for mime, write in _WRITERS:
        if mime not in data:
            continue
        text = _plain_text(data) if mime == "text/plain" else join_text(data[mime])
        if len(text) <= MAX_RICH_NBYTES:
            html = write(text, _metadata_of(metadata, mime), alt or mime)
            return html + _format_script_note(data, mime, text) + too_large
        too_large = format_pre(f"… {mime} of {format_nbytes(len(text))} is not stored in the notebook")
    return format_pre(f"<{', '.join(sorted(data)) or 'nothing'}>") + too_large


def output_to_text(output: Output, *, color: bool = False) -> str:
    """Format one output as text, with its colours if `color` is set.

    >>> output_to_text({"output_type": "display_data", "data": {"image/png": "…"}})
    '<image/png>'
    """
    kind = output["output_type"]
    if kind == "stream":
        text = join_text(output["text"])
    elif kind == "error":
        text = "\n".join(output["traceback"])
    else:
        text = _plain_text(output.get("data", {}))
    return text if color else strip_ansi(text)


def is_hidden(output: Output) -> bool:
    """Return whether an output is data for another display's scripts."""
    html = _html_for_scripts(output)
    return html is not None and (is_hidden_html(html) or output["data"].get("text/plain") == "")


def show_without_scripts(output: Output) -> Output:
    """Return the text, with a note, of a display by scripts only.

    >>> display = {"output_type": "display_data", "data": {"text/html": "<script>draw()</script>", "text/plain": "Linear(4, 2)"}}
    >>> show_without_scripts(display)["data"]["text/plain"].splitlines()[0]
    'Linear(4, 2)'
    """
    html = _html_for_scripts(output)
    if html is None:
        return output
    data = {mime: content for mime, content in output["data"].items() if mime != "text/html"}
    if data.keys() - {"text/plain", _SCRIPT_MIME}:
        # Its other forms need no script.
        return {**output, "data": data}
    text = _plain_text(data)
    if OBJECT_REPR.fullmatch(text):
        text = shorten_text(_first_lines(html.strip()), _MAX_SCRIPT_CHARS)
    return {**output, "data": {**data, "text/plain": f"{text}\n({SCRIPTS_NOT_RUN})"}}


def _html_for_scripts(output: Output) -> str | None:
    """Return a display's HTML if only scripts can draw it."""
    html = join_text((output.get("data") or {}).get("text/html", ""))
    return html if is_drawn_by_scripts(html) else None


def format_pre(text: str, *, style: str = "") -> str:
    """Format preformatted text as HTML.

    The style sets a monospace font, because nbconvert's page sets none.
    """
    return format_pre_html(ansi_to_html(text), style=style)


def format_pre_html(html: str, *, style: str = "") -> str:
    """Format text that is already HTML, as `format_pre` does."""
    blocks = (_format_lines(part, style, is_wrapped=is_wrapped) for part, is_wrapped in _split_unwrapped(html))
    # JupyterLab and nbconvert style the ansi classes only inside this class, in the theme's own colours
    return f'<div class="jp-RenderedText" style="padding:0">{"".join(blocks)}</div>'


def _format_lines(html: str, style: str, *, is_wrapped: bool) -> str:
    # nbconvert converts a notebook to Markdown too. There a blank line would end the HTML, and the rest would be parsed
    # as Markdown.
    unbroken = _BLANK_LINE.sub(r"\1&#10;", html)
    if is_wrapped:
        return f'<pre style="{PRE_STYLE}{";" + style if style else ""}">{unbroken}</pre>'
    is_wide = max(map(len, _read_lines(html))) > _MAX_NARROW_CHARS
    focus = ' tabindex="0" role="group" aria-label="wide text"' if is_wide else ""
    return f'<pre class="mhnb-table"{focus} style="{_UNWRAPPED_STYLE}{";" + style if style else ""}">{unbroken}</pre>'


def _split_unwrapped(html: str) -> Iterator[tuple[str, bool]]:
    """Yield the text's parts, each with whether its lines are wrapped.

    A colour that continues across such a place cannot be split: then no line is wrapped.
    """
    runs = find_unwrapped([_DIFFERENCE.sub("", line) for line in _read_lines(html)])
    if not runs:
        yield html, True
        return
    lines = html.split("\n")
    places = sorted({0, len(lines), *(run.start for run in runs), *(run.stop for run in runs)})
    parts = [lines[first:end] for first, end in pairwise(places)]
    if not all(_is_closed("\n".join(part)) for part in parts):
        yield html, False
        return
    starts = {run.start for run in runs}
    for first, part in zip(places, parts, strict=False):
        is_last = first + len(part) == len(lines)
        if part == [""] and is_last:
            continue
        # A parser drops a line end after the opening tag, and none is shown before the closing one.
        before = "\n" if first and not part[0] else ""
        after = "&#10;" if not part[-1] and not is_last else ""
        yield before + "\n".join(part) + after, first not in starts


def _read_lines(html: str) -> list[str]:
    """Return the lines that a reader sees."""
    text = _TAG.sub("", html) if "<" in html else html
    return (unescape(text) if "&" in text else text).split("\n")


def _is_closed(html: str) -> bool:
    depth = 0
    for tag in _TAG.finditer(html):
        depth += -1 if tag[1] else 1
        if depth < 0:
            return False
    return not depth


def plain_nbytes(outputs: Iterable[Output]) -> int:
    """Return roughly how much text outputs hold, besides figures and similar content."""
    streams = sum(len(join_text(o["text"])) for o in outputs if o["output_type"] == "stream")
    return streams + sum(len(join_text(o.get("data", {}).get("text/plain", ""))) for o in outputs)


def _plain_text(data: dict[str, Any]) -> str:
    texts = [_format_source(mime, data[mime]) for mime in _SOURCE_MIMES if mime in data]
    # A script refers to the page that contains it. That page is the notebook's, and all ranks share it.
    texts += [f"({SCRIPTS_NOT_RUN})\n{_first_lines(join_text(data[_SCRIPT_MIME]))}"] if _SCRIPT_MIME in data else []
    if readable := [text for text in texts if not OBJECT_REPR.fullmatch(text)] or texts:
        return readable[0]
    return f"<{', '.join(sorted(data)) or 'nothing'}>"


def _first_lines(source: str) -> str:
    lines = source.splitlines()
    more = [f"… {len(lines) - _MAX_SCRIPT_LINES} more lines"] if len(lines) > _MAX_SCRIPT_LINES else []
    return "\n".join([*lines[:_MAX_SCRIPT_LINES], *more])


def _format_source(mime: str, content: Any) -> str:
    return join_text(content) if mime.startswith("text/") else json.dumps(content, ensure_ascii=False, default=str)


def _metadata_of(metadata: Any, mime: str) -> dict[str, Any]:
    """Return one MIME type's metadata; a rank may send any value."""
    entry = metadata.get(mime) if isinstance(metadata, dict) else None
    return entry if isinstance(entry, dict) else {}


def _format_script_note(data: dict[str, Any], mime: str, text: str) -> str:
    """Format a note if an output's scripts were removed."""
    has_script = mime in ("text/html", "text/markdown", "image/svg+xml") and contains_script(text)
    if not has_script and (mime == "text/plain" or _SCRIPT_MIME not in data):
        return ""
    return f'<div style="opacity:.65">({SCRIPTS_NOT_RUN})</div>'


_Writer: TypeAlias = Callable[[str, dict[str, Any], str], str]
"""Takes the content, its metadata, and the description of an image."""


def _write_html(text: str, _metadata: dict[str, Any], _alt: str) -> str:
    return clean_html(text)


def _write_plain(text: str, _metadata: dict[str, Any], _alt: str) -> str:
    return format_pre(text)


def _write_latex(text: str, _metadata: dict[str, Any], _alt: str) -> str:
    return f"<div>{escape(text, quote=False)}</div>"


def _write_markdown(text: str, _metadata: dict[str, Any], _alt: str) -> str:
    try:
        import mistune
    except ImportError:  # mistune comes with nbconvert; without it the source is readable too
        return format_pre(text)
    return clean_html(str(mistune.html(text)))


def _write_svg(text: str, metadata: dict[str, Any], alt: str) -> str:
    # an untrusted notebook loses inline <svg>, but not an image
    return _format_image("image/svg+xml", base64.b64encode(text.encode()).decode(), metadata, alt)


def _image_writer(mime: str) -> _Writer:
    return lambda text, metadata, alt: _format_image(mime, "".join(text.split()), metadata, alt)


def _format_image(mime: str, encoded: str, metadata: dict[str, Any], alt: str) -> str:
    size = "".join(_format_size(side, metadata.get(side)) for side in ("width", "height"))
    # Where there is less room, it keeps its shape.
    style = "max-width:100%;height:auto" if "width" in size else "max-width:100%"
    return f'<div><img alt="{escape(alt)}"{size} style="{style}" src="data:{mime};base64,{escape(encoded)}"></div>'


def _format_size(side: str, value: Any) -> str:
    """Format a size attribute as JupyterLab does: pixels or a percentage."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    match = _SIZE.fullmatch(str(value))
    return f' {side}="{match[1]}{match[2]}"' if match else ""


_WRITERS: tuple[tuple[str, _Writer], ...] = (
    ("text/html", _write_html),
    ("text/markdown", _write_markdown),
    ("text/latex", _write_latex),
    ("image/svg+xml", _write_svg),
    *((mime, _image_writer(mime)) for mime in ("image/png", "image/jpeg", "image/gif", "image/webp")),
    ("text/plain", _write_plain),
)
"""Writers in JupyterLab's own order of preference."""


# -- images


def is_image(output: Output) -> bool:
    """Return whether an output is shown as an image.

    >>> is_image({"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": "<Figure>"}})
    True
    """
    data = output.get("data", {})
    shown = next((mime for mime, _ in _WRITERS if mime in data), "")
    return shown.startswith("image/") and len(join_text(data[shown])) <= MAX_RICH_NBYTES


def read_image_width(output: Output) -> int | None:
    """Return an image's preferred width in pixels; None if unknown.

    >>> read_image_width({"output_type": "display_data", "data": {"image/png": "AAAA"}, "metadata": {"image/png": {"width": 40}}})
    40
    """
    data, metadata = output.get("data", {}), output.get("metadata")
    for mime in (mime for mime, _ in _WRITERS if mime.startswith("image/") and mime in data):
        asked = _SIZE.fullmatch(str(_metadata_of(metadata, mime).get("width", "")))
        return int(asked[1]) if asked and not asked[2] else _read_png_width(join_text(data[mime]))
    return None


def _read_png_width(encoded: str) -> int | None:
    try:
        head = base64.b64decode("".join(encoded[:64].split())[:32])
    except ValueError:  # a rank may send anything as an image
        return None
    return int.from_bytes(head[16:20]) if head.startswith(b"\x89PNG") and len(head) == 24 else None


# -- paths of log files


def format_log_html(path: str, notebook_dir: str = "") -> str:
    """Format a path as a link or as text to copy.

    Args:
        path: of the log file.
        notebook_dir: the notebook's folder; empty if it is unknown.

    >>> format_log_html("/data/nb/logs/rank0.log", "/data/nb")
    '<a href="logs/rank0.log" title="opens in JupyterLab">/data/nb/logs/rank0.log</a>'
    >>> format_log_html("/data/.local/rank0.log", "/data/nb")
    '<code style="user-select:all" title="a click selects it">/data/.local/rank0.log</code>'
    """
    shown = escape(path, quote=False)
    relative = _relative_path(path, notebook_dir)
    if relative:
        return f'<a href="{quote(relative)}" title="opens in JupyterLab">{shown}</a>'
    return f'<code style="user-select:all" title="a click selects it">{shown}</code>'


def _relative_path(path: str, notebook_dir: str) -> str:
    """Return the path relative to the folder; empty if outside or hidden."""
    if not notebook_dir or not PurePosixPath(path).is_relative_to(notebook_dir):
        return ""
    relative = PurePosixPath(path).relative_to(notebook_dir)
    return "" if any(part.startswith(".") for part in relative.parts) else str(relative)
