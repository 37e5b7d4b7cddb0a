"""The pages that readers see on a code host: README, the changelog, docs/ and the notebooks. Their links lead somewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source import ROOT

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(<?([^)<>\s]+)>?(?: \"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "notebooks").rglob("*.md"),
        *(ROOT / "tests").rglob("*.md"),
    ]
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@cache
def _read(path: Path) -> str:
    """Return the Markdown of a page or of a notebook, without its code blocks."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return _FENCE.sub("", text)


def anchor(heading: str) -> str:
    """Return the anchor that a code host gives to a heading.

    Letters are made small, punctuation is left out and each space becomes a hyphen.
    """
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@cache
def _anchors(path: Path) -> set[str]:
    """Return the anchors of a page: those of its headings, numbered where several are equal, and its own targets."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in _HEADING.findall(_read(path)):
        name = anchor(heading)
        count = found[name] = found.get(name, -1) + 1
        anchors.add(f"{name}-{count}" if count else name)
    return anchors | set(_TARGET.findall(_read(path)))


def _find_broken_links(path: Path, text: str) -> Iterator[str]:
    for target in _LINK.findall(_CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, wanted = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        if not to.exists():
            yield f"{target}: there is no such file"
        elif wanted and to.suffix == ".md" and wanted not in _anchors(to):
            yield f"{target}: the page has no such heading"


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Each relative link of a page leads to a file that exists, and to a heading of it."""
    assert list(_find_broken_links(path, _read(path))) == []


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("[a](README.md)", False),
        ("[a](nowhere.md)", True),
        ("[a](CONTRIBUTING.md#no-such-heading)", True),
        ("`[a](nowhere.md)`", False),
        ("[a](https://example.org/nowhere)", False),
    ],
)
def test_a_broken_link_is_found(link: str, *, is_broken: bool) -> None:
    """The check of the links can fail."""
    assert bool(list(_find_broken_links(ROOT / "README.md", link))) == is_broken


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Who runs where", "who-runs-where"),
        ("`%mhjax start`: shape", "mhjax-start-shape"),
        ("A [link](x.md), B", "a-link-b"),
    ],
)
def test_anchors_are_those_of_a_code_host(heading: str, expected: str) -> None:
    """Anchors are made of headings as a code host makes them."""
    assert anchor(heading) == expected


def test_every_page_of_the_site_is_below_docs() -> None:
    """The site has a page for every notebook."""
    listed = (ROOT / "docs" / "lessons" / "index.md").read_text(encoding="utf-8").split()
    assert [path.stem for path in NOTEBOOKS if path.stem not in listed] == []
