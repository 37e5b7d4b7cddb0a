"""Saved outputs of real ranks in viewers without a kernel: GitHub, VS Code, and HTML or Markdown of nbconvert."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mistune
import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

from tests.support.lab import open_chromium
from tests.support.leftovers import processes_of, wait_for_end
from tests.support.strict import keep_allowed
from tests.support.view_samples import StrictPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

START = "%load_ext mhnb\n%mhjax start -n 4 --devices 2"
OWN = "%%mhjax\nimport jax, numpy as np\nme = jax.process_index()\nprint(f'process {me} of 4\\n\\n    and after a gap {me}')"
ODD = "%%mhjax\nprint('loss', 0.731 if me == 2 else 0.312)"
NUMBERS = "%%mhjax\nprint('loss', 0.25 * me + 0.125, 'step 7')"
LONG = "%%mhjax\nfor word in 'first second third fourth fifth sixth'.split(): print('odd' if me == 1 and word == 'third' else word)"
TABS = "%%mhjax --view tabs\nprint('word', 'abcd'[me])"
GRID = "%%mhjax --view grid\nprint('card', 'abcd'[me])"
ERROR = "%%mhjax\ny = 1\nif me == 2:\n    raise ValueError('only <here>')"
PICTURES = "%%mhjax\nfrom PIL import Image\nImage.new('RGB', (60, 30), (90 * (me == 1), 120, 200))"
DRAWING = """%%mhjax
from IPython.display import HTML, SVG, display
display(SVG('<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><circle cx="20" cy="15" r="9"/></svg>'))
HTML(f'<table><tr><th>part</th></tr><tr><td>of <i>rank</i> {me}</td></tr></table>')
"""
LAYOUT_SETUP = """%%mhjax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ('data', 'model'))
x = jax.device_put(np.zeros((8, 6), np.float32), NamedSharding(mesh, P('data')))
"""
LAYOUT_COMMAND = "%mhjax layout x"
SOURCES = (START, OWN, ODD, NUMBERS, LONG, TABS, GRID, ERROR, PICTURES, DRAWING, LAYOUT_SETUP, LAYOUT_COMMAND)

WORDS = {
    OWN: [f"{words} {rank}" for rank in range(4) for words in ("process", "    and after a gap")],
    ODD: ["rank 2 host2 ≠", "loss 0.731 ← 0.312 elsewhere", "ranks 0-1,3", "loss 0.312"],
    NUMBERS: ["loss ‹a› step 7", "0.125", "0.375", "0.625", "0.875"],
    LONG: ["rank 1 differs", "odd", "first", "sixth"],
    TABS: [f"word {letter}" for letter in "abcd"],
    GRID: [f"card {letter}" for letter in "abcd"],
    ERROR: ["✗ ValueError on rank 2", "In [8], line 4", "raise ValueError('only <here>')", "ValueError: only <here>"],
    PICTURES: ["rank 1", "ranks 0,2-3"],
    DRAWING: [f"of rank {rank}" for rank in range(4)],
    LAYOUT_COMMAND: ["P('data') on mesh (data 4, model 2)", "host0", "host3", "0:0", "3:1", "48 B per device"],
}
NAMES = ("own", "odd", "numbers", "long", "tabs", "grid", "error", "pictures", "drawing", "card")
PICTURE_COUNTS = {PICTURES: 2, DRAWING: 1}
"""The number of pictures that are visible without a click."""
TEXT_WORDS = WORDS | {
    OWN: ["process ‹rank› of 4", "    and after a gap ‹rank›"],
    ODD: ["rank 2      │ loss 0.731 ← 0.312 elsewhere", "ranks 0-1,3 │ loss 0.312"],
    ERROR: [words.removeprefix("✗ ") for words in WORDS[ERROR]],
    DRAWING: [
        "<IPython.core.display.SVG object>",
        *(f"rank {rank}: <IPython.core.display.HTML object>" for rank in range(4)),
    ],
}
"""The same words as in the text form, where drawings and HTML are replaced by their names."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The notebook file after the run."""

    notebook: Any

    def form(self, source: str, mime: str) -> str:
        """Return what is stored below a cell in one of its two forms."""
        outputs = next(cell.outputs for cell in self.notebook.cells if cell.source == source)
        return "\n".join("".join(output["data"][mime]) for output in outputs if mime in output.get("data", {}))


@pytest.fixture(scope="module")
def stored(own_environment: None, mhnb_home: Path) -> Stored:
    """Run every cell once. The kernel and its ranks have ended before the outputs are read."""
    cells = [nbformat.v4.new_code_cell(source) for source in SOURCES]
    cells[SOURCES.index(ERROR)].metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    before = {process.pid for process in processes_of(mhnb_home)}
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    started = [process for process in processes_of(mhnb_home) if process.pid not in before]
    assert wait_for_end(started, 60) == []
    return Stored(nbformat.reads(nbformat.writes(notebook), as_version=4))


@pytest.mark.parametrize("source", WORDS, ids=NAMES)
def test_strict_site_shows_all_output(stored: Stored, source: str) -> None:
    """A site that strips styles and scripts shows every word and picture, and shows nothing of what it removed as text."""
    allowed_html = keep_allowed(stored.form(source, "text/html"))
    page = StrictPage(allowed_html)
    assert [words for words in WORDS[source] if words not in page.text.replace("\N{NO-BREAK SPACE}", " ")] == []
    assert not re.search(r"[{}]|font-family|var\(|mhnb", page.text)
    assert not re.search(r"<(style|script|button|input)| (style|class|id|onclick)=", allowed_html)
    pictures = [of for tag, of in page.tags if tag == "img" and str(of["src"]).startswith("data:image")]
    assert len(pictures) >= PICTURE_COUNTS.get(source, 0)


@pytest.mark.parametrize("source", WORDS, ids=NAMES)
def test_text_form_is_complete(stored: Stored, source: str) -> None:
    """The text form has the same content, for viewers that show no HTML, such as VS Code in an untrusted folder."""
    text = stored.form(source, "text/plain")
    assert [words for words in TEXT_WORDS[source] if words not in text] == []


def test_markdown_export_is_complete(stored: Stored) -> None:
    """nbconvert puts mhnb's HTML into Markdown, and a site that renders it shows every word, with or without blank lines."""
    markdown, _ = MarkdownExporter().from_notebook_node(stored.notebook)
    render = mistune.create_markdown(escape=False)
    page = StrictPage(keep_allowed(str(render(markdown))))
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert [words for source in WORDS for words in WORDS[source] if words not in text] == []
    assert "font-family" not in text


@pytest.fixture(scope="module")
def strict_page(stored: Stored) -> Iterator[Page]:
    """All outputs on a page that runs no script, one element per cell."""
    with open_chromium() as browser:
        page = browser.new_page(java_script_enabled=False)
        forms = (keep_allowed(stored.form(source, "text/html")) for source in SOURCES)
        page.set_content("".join(f"<section>{form}</section>" for form in forms))
        yield page


@pytest.mark.browser
@pytest.mark.requires_part("browser")
def test_blocks_that_open_have_content(strict_page: Page) -> None:
    """Each block that opens contains words or a picture of its rank besides its label."""
    empty = """all => all.filter(e => !e.querySelector('img')
      && e.textContent.length <= e.querySelector('summary').textContent.length).map(e => e.textContent)"""
    assert strict_page.locator("details").count() > 8
    assert strict_page.locator("details").evaluate_all(empty) == []


@pytest.mark.browser
@pytest.mark.requires_part("browser")
def test_labels_are_on_their_own_lines(strict_page: Page) -> None:
    """Without styles blocks are still separate lines, so that no rank's name runs into another rank's text."""
    assert strict_page.locator("section").nth(SOURCES.index(GRID)).inner_text().splitlines()[1:] == [
        line for rank, letter in enumerate("abcd") for line in (f"rank {rank} host{rank}", f"card {letter}")
    ]
    start = strict_page.locator("section").nth(0)
    start.locator("summary").click()
    assert len(start.inner_text().splitlines()) == 6
    odd = strict_page.locator("section").nth(SOURCES.index(ODD)).inner_text().splitlines()
    assert odd[1:5] == ["rank 2 host2 ≠", "loss 0.731 ← 0.312 elsewhere", "ranks 0-1,3 host[0-1,3]", "loss 0.312"]


@pytest.mark.browser
@pytest.mark.requires_part("browser")
def test_pictures_are_drawn(strict_page: Page) -> None:
    """Pictures are drawn from the bytes in the notebook."""
    sections = strict_page.locator("section")
    for source, count in PICTURE_COUNTS.items():
        pictures = sections.nth(SOURCES.index(source)).locator("img:visible")
        assert pictures.count() == count
        assert min(pictures.evaluate_all("all => all.map(e => e.naturalWidth)")) >= 40


@pytest.mark.browser
@pytest.mark.requires_part("browser")
def test_tabs_open_by_click(strict_page: Page) -> None:
    """A click on a rank's name opens its tab."""
    tabs = strict_page.locator("section").nth(SOURCES.index(TABS))
    for rank, letter in enumerate("abcd"):
        if tabs.get_by_text(f"word {letter}").is_hidden():
            tabs.locator("summary").nth(rank).click()
        assert tabs.get_by_text(f"word {letter}").is_visible()
