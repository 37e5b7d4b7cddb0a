"""The page of messages has a section for every error class and for every kind of note."""

from __future__ import annotations

import re

import pytest

from mhnb import errors
from mhnb.core.note_kinds import NOTE_KINDS
from tests.support.source import ROOT

PAGE = ROOT / "docs" / "reference" / "messages.md"
MAX_LINES, MAX_LINE_CHARS = 25, 130

_ANCHOR = re.compile(r"^\((.+)\)=$", re.MULTILINE)


def _sections() -> dict[str, str]:
    """Return the text below each anchor, up to the next one."""
    parts = _ANCHOR.split(PAGE.read_text(encoding="utf-8"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _kebab_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_a_section(name: str) -> None:
    """A section has the class name as its heading, and the name in lower case with dashes as its anchor."""
    assert _sections()[_kebab_case(name)].startswith(f"\n## {name}\n")


def test_every_section_is_an_error_or_a_kind_of_note() -> None:
    """The anchors are the error classes and the kinds of notes, each once."""
    anchors = _ANCHOR.findall(PAGE.read_text(encoding="utf-8"))
    assert sorted(anchors) == sorted([*map(_kebab_case, errors.__all__), *NOTE_KINDS])


def test_anchors_are_kebab_case() -> None:
    """An anchor has words of small letters with dashes between them."""
    assert [anchor for anchor in _sections() if not re.fullmatch(r"[a-z]+(-[a-z]+)*", anchor)] == []


def test_sections_fit_into_a_terminal() -> None:
    """A section has at most 25 lines of at most 130 characters, one heading, and no table."""
    for anchor, text in _sections().items():
        lines = text.strip().splitlines()
        assert len(lines) <= MAX_LINES, anchor
        assert max(map(len, lines)) <= MAX_LINE_CHARS, anchor
        assert [line for line in lines if line.startswith("#")] == lines[:1], anchor
        assert not any(line.startswith("|") for line in lines), anchor


def test_links_of_the_page_lead_to_sections() -> None:
    """Every link and every name after `see` leads to a section of the page."""
    text = PAGE.read_text(encoding="utf-8")
    named = [*re.findall(r"\]\(#([\w-]+)\)", text), *re.findall(r"[Ss]ee `([a-z-]+)`", text)]
    assert named
    assert [name for name in named if name not in _sections()] == []


def test_kinds_of_notes_are_sentences() -> None:
    """Each kind of note is explained by one sentence."""
    assert [name for name, text in NOTE_KINDS.items() if not re.fullmatch(r"[A-Z][^.]*\.", text)] == []
