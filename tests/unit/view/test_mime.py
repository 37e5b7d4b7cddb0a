"""One output as an HTML fragment and as text."""

from __future__ import annotations

import base64
import re
from html import unescape
from typing import Any

import pytest

from mhnb.types import Output
from mhnb.view import mime
from mhnb.view.mime import output_to_html, output_to_text
from mhnb.view.sanitize import SCRIPTS_NOT_RUN
from tests.support.view_samples import out, shown, value

PNG = base64.b64encode(b"\x89PNG figure").decode()


def test_text_is_escaped_in_a_monospace_block() -> None:
    """Printed text cannot become markup, and the block sets its own font."""
    html = output_to_html(out("<b>&\n"))
    assert "&lt;b&gt;&amp;</pre>" in html
    assert "font-family:monospace" in html


def test_no_line_of_a_block_is_blank() -> None:
    """Markdown reads HTML only up to a blank line; a reader of the page sees the same lines."""
    html = output_to_html(out("a\n\n \n\n    b\n\n"))
    assert not re.search(r"\n[ \t]*\n", html)
    assert "a\n\n \n\n    b\n" in unescape(html)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_a_figure_is_embedded(kind: str) -> None:
    """An image is a data URI, so that the notebook stores it."""
    html = output_to_html({"output_type": "display_data", "data": {f"image/{kind}": PNG + "\n", "text/plain": "fig"}})
    assert f'src="data:image/{kind};base64,{PNG}"' in html


def test_an_svg_is_an_image() -> None:
    """An untrusted notebook would drop inline `<svg>`."""
    html = output_to_html(shown(image__svg="<svg><text>hello</text></svg>", text__plain="svg"))
    encoded = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert encoded
    assert base64.b64decode(encoded[1]) == b"<svg><text>hello</text></svg>"


def test_html_is_preferred_over_text() -> None:
    """A rich form is preferred, and its content is not changed."""
    assert "<p>a<b>1</b></p>" in output_to_html(value("1", **{"text/html": "<p>a<b>1</b></p>"}))


def test_image_with_a_size_keeps_its_shape() -> None:
    """Where there is less room than the size that was asked for, width and height shrink together."""
    asked = {**shown(image__png=PNG), "metadata": {"image/png": {"width": 270, "height": 200}}}
    assert ' width="270" height="200" style="max-width:100%;height:auto"' in output_to_html(asked)


def test_image_has_a_description() -> None:
    """Users who do not see an image are told what it is; no description can leave the attribute."""
    assert '<img alt="figure of rank 0"' in output_to_html(shown(image__png=PNG), alt="figure of rank 0")
    assert '<img alt="image/png"' in output_to_html(shown(image__png=PNG))
    assert '<img alt="a&quot;b"' in output_to_html(shown(image__png=PNG), alt='a"b')


@pytest.mark.parametrize(
    ("metadata", "size"),
    [
        ({"image/png": {"width": 40, "height": 20}}, ' width="40" height="20"'),
        ({"image/png": {"width": "50%"}}, ' width="50%"'),
        ({"image/png": {"width": 12.7, "height": "30px"}}, ' width="12" height="30"'),
        ({"image/png": {"width": None, "height": "auto"}}, ""),
        ({"image/png": {"width": {"a": 1}, "height": True}}, ""),
        ({"image/png": {"width": '5" onload="x', "height": -3}}, ""),
        ({"image/png": {"width": float("nan"), "height": float("inf")}}, ""),
        ({"image/png": "wide"}, ""),
        ({"image/png": None}, ""),
        (["wide"], ""),
        (None, ""),
    ],
)
def test_any_size_value_is_accepted(metadata: Any, size: str) -> None:
    """A valid size is set, as in JupyterLab; an invalid size is ignored."""
    html = output_to_html({"output_type": "display_data", "data": {"image/png": PNG}, "metadata": metadata})
    assert f'alt="image/png"{size} style=' in html


@pytest.mark.parametrize(
    "mime", ["text/html", "text/markdown", "text/latex", "image/svg+xml", "image/png", "text/plain"]
)
@pytest.mark.parametrize("form", [None, 3, {"a": [1]}, ["a", "b"], ["a", None], True, ""])
def test_form_that_is_not_text_is_accepted(mime: str, form: Any) -> None:
    """A value that is not text breaks no view, because a rank may display any value under any type."""
    output: Output = {"output_type": "display_data", "data": {mime: form}, "metadata": {}}
    assert output_to_html(output)
    assert isinstance(output_to_text(output), str)


@pytest.mark.parametrize(
    "data",
    [
        {"text/html": "<b>x</b><script>ran = 1</script>"},
        {"text/html": "<b onclick='go()'>x</b>"},
        {"text/html": "<b>x</b><iframe srcdoc='<script>go()</script>'></iframe>"},
        {"text/html": "<a href='javascript:go()'>x</a>"},
        {"text/html": "<div>x</div>", "application/javascript": "go()"},
        {"text/markdown": "x <script>go()</script>"},
        {"image/svg+xml": "<svg onload='go()'><text>x</text></svg>"},
        {"application/javascript": "go()", "text/plain": "<IPython.core.display.Javascript object>"},
    ],
)
def test_scripts_are_not_run_and_noted(data: dict[str, str]) -> None:
    """A rank's script is not run, whatever its form, and a note says so."""
    html = output_to_html({"output_type": "display_data", "data": data, "metadata": {}})
    assert SCRIPTS_NOT_RUN in unescape(html)
    assert not re.search(r"<script|<iframe|onclick|onload|javascript:", html)


def test_a_widget_is_shown_as_its_text() -> None:
    """A widget view outside its kernel is an error message, so it is never stored."""
    html = output_to_html(value("IntSlider(0)", **{"application/vnd.jupyter.widget-view+json": "{}"}))
    assert "IntSlider(0)" in html
    assert "widget" not in html


def test_latex_is_rendered_by_the_front_end() -> None:
    """LaTeX stays as source outside `<pre>`, where MathJax finds it."""
    assert output_to_html(shown(text__latex="$a<b$", text__plain="tex")) == "<div>$a&lt;b$</div>"


def test_markdown_is_rendered() -> None:
    """Markdown becomes HTML."""
    assert "<strong>bold</strong>" in output_to_html(shown(text__markdown="**bold**", text__plain="md"))


def test_too_large_figure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit only the text form is stored, with a note about the missing form."""
    monkeypatch.setattr(mime, "MAX_RICH_NBYTES", 8)
    html = output_to_html(shown(image__png="A" * 9, text__plain="fig"))
    assert "fig" in html
    assert "image/png of 9 B is not stored" in html


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (out("\x1b[31mred\x1b[0m"), "red"),
        (value("3"), "3"),
        (shown(text__markdown="**b**"), "**b**"),
        (shown(text__plain="<IPython.core.display.Math object>", text__latex="$a$"), "$a$"),
        (shown(text__plain="<IPython.core.display.HTML object>", text__html="x"), "<IPython.core.display.HTML object>"),
        (
            shown(application__json={"a": [1, None]}, text__plain="<IPython.core.display.JSON object>"),
            '{"a": [1, null]}',
        ),
        (
            shown(**{"application/geo+json": {"type": "Point"}}, text__plain="<IPython.display.GeoJSON object>"),
            '{"type": "Point"}',
        ),
        (shown(application__json=["a", "b"], text__plain="<IPython.core.display.JSON object>"), '["a", "b"]'),
        (shown(application__json=[], text__plain="<IPython.core.display.JSON object>"), "[]"),
        (shown(application__json=["a", 1], text__plain="my own words"), "my own words"),
        (
            shown(application__javascript="alert(1)", text__plain="<IPython.core.display.Javascript object>"),
            f"({SCRIPTS_NOT_RUN})\nalert(1)",
        ),
        (shown(image__png=PNG), "<image/png>"),
        ({"output_type": "error", "ename": "E", "evalue": "", "traceback": ["a", "b"]}, "a\nb"),
    ],
)
def test_every_output_has_a_text(output: Output, text: str) -> None:
    """The text form names what it cannot show."""
    assert output_to_text(output) == text


def test_json_is_shown_as_text() -> None:
    """JSON is shown instead of IPython's text for it, which is only an object name."""
    html = output_to_html(shown(text__plain="<IPython.core.display.JSON object>", application__json={"a": "<b>"}))
    assert '{"a": "&lt;b&gt;"}' in html
    assert "IPython" not in html


def test_colours_are_kept_for_a_terminal() -> None:
    """Colours are kept for a terminal."""
    assert output_to_text(out("\x1b[31mred"), color=True) == "\x1b[31mred"
