"""Plain words: no text of the project has a banned word. `words.py` has the lists, and prints what is only advised against."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.policy.words import (
    BANNED,
    EXCEPTIONS,
    LONG_SENTENCE,
    Finding,
    Passage,
    find_advisory,
    find_banned,
    find_long_sentences,
    notebook_passages,
    python_passages,
    read_passages,
    read_project,
)


def _python(source: str) -> list[tuple[int, str]]:
    return [(each.line, each.word) for each in find_banned(python_passages("a.py", source))]


def _notebook(*cells: tuple[str, str]) -> str:
    found = [{"cell_type": kind, "source": source.splitlines(keepends=True)} for kind, source in cells]
    return json.dumps({"cells": found}, indent=1, ensure_ascii=False)


# -- the project


def test_no_text_has_a_banned_word() -> None:
    """No string, docstring, comment, page or cell of a notebook has a word of the banned list."""
    found = find_banned(read_project())
    assert not found, "\n".join(map(str, found))


def test_every_kind_of_file_is_read() -> None:
    """The texts come from Python files, pages and notebooks of all the folders."""
    paths = {passage.path for passage in read_project()}
    assert paths >= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/concepts.md", "notebooks/00_tour.ipynb"}
    assert paths >= {"mhnb/errors.py", "mhnb/view/live/panel.js", "profiles/slurm/ipcluster_config.py"}


def test_every_exception_is_needed() -> None:
    """A word that is allowed in a file is in that file."""
    needed = {(each.path, each.word) for each in find_banned(read_project(), exceptions={})}
    assert needed >= set(EXCEPTIONS)


# -- Python


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""Mend the cause."""', 1),
        ('def f():\n    """One line.\n\n    It shall work.\n    """', 4),
        ("x = 1  # it waits for ever", 1),
        ("# it waits for\n# ever", 1),
        ('f"a {x} is told"', 1),
        ('f"{x:>3} lies on {y}"', 1),
        ('x = ("it stands "\n     "under an if")', 1),
        ('"fixed, and mending"', 1),
        ('"Shall we"', 1),
        ('"ends otherwise\\nthan before"', 1),
    ],
)
def test_banned_word_is_found_in_python(source: str, line: int) -> None:
    """A banned word in a docstring, comment, string or f-string is found with its line, also across a line end."""
    assert [found for found, _ in _python(source)] == [line]


@pytest.mark.parametrize(
    "source",
    [
        "mended_step = shall = 1",
        "def mend(): ...",
        '"mended_step and amended, marshall"',
        '"the value is None"',
        'f"{mend} {shall!r}"',
        "x.lies_on.mended",
        '"lies\\\\non"',
    ],
)
def test_identifier_is_not_a_word(source: str) -> None:
    """A name in code, a part of a name, and the value `None` are not found."""
    assert not _python(source)


def test_each_banned_word_is_found() -> None:
    """Every word of the list is found, once."""
    assert [word for word in BANNED if _python(f'"a {word} b"') != [(1, word)]] == []


def test_exception_allows_one_word_in_one_file() -> None:
    """An exception allows its word in its file, and neither another word nor another file."""
    passages = [Passage("a.md", 1, "shall mend"), Passage("b.md", 1, "shall")]
    found = find_banned(passages, exceptions={("a.md", "shall"): "a quotation"})
    assert [(each.path, each.word) for each in found] == [("a.md", "mend"), ("b.md", "shall")]


# -- notebooks


def test_banned_word_is_found_in_a_markdown_cell() -> None:
    """A banned word in a Markdown cell is found, with its line of the notebook's file."""
    text = _notebook(("markdown", "# Title\n\nThen *mend* “it”."))
    (found,) = find_banned(notebook_passages("a.ipynb", text))
    assert (found.word, "mend" in text.splitlines()[found.line - 1]) == ("mend", True)


@pytest.mark.parametrize(
    "source",
    [
        "%%mhjax --ranks 0\nx = 1\nprint('it is told')",
        "%%mhjax\nx = 1  # it is told",
        "%mhjax push x  # it is told",
        "if x:\n    %mhjax check x\n    y = 'it is told'",
        "this is told and is no Python",
    ],
)
def test_banned_word_is_found_in_a_code_cell(source: str) -> None:
    """A banned word in a string, comment or magic line of a code cell is found, with its line of the file."""
    text = _notebook(("markdown", "Text."), ("code", source))
    (found,) = find_banned(notebook_passages("a.ipynb", text))
    assert (found.word, "is told" in text.splitlines()[found.line - 1]) == ("is told", True)


def test_identifier_of_a_code_cell_is_not_a_word() -> None:
    """A name in a code cell is not found."""
    assert not find_banned(notebook_passages("a.ipynb", _notebook(("code", "%%mhjax\nmended = shall(1)"))))


# -- pages


def test_banned_word_is_found_in_a_page(tmp_path: Path) -> None:
    """A banned word in a page below docs/ is found with its line; a build of the pages is not read."""
    for folder in ("docs", "docs/_build"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "page.md").write_text("# Page\n\nIt lies\non one host.\n", encoding="utf-8")
    assert find_banned(read_passages(tmp_path)) == [Finding("docs/page.md", 3, "lies on", BANNED["lies on"])]


def test_advisory_word_is_only_advised_against() -> None:
    """A word of the advisory list has a suggestion, and is not banned."""
    passage = Passage("a.py", 7, "both are alike")
    (found,) = find_advisory([passage])
    assert str(found) == "a.py:7: alike: the same"
    assert not find_banned([passage])


@pytest.mark.parametrize(
    ("source", "count"),
    [('"8 B a device"', 1), ('f"{n} a device"', 1), ('"at most 8 bytes\\na device"', 1), ('"an array on a device"', 0)],
)
def test_rate_per_device_is_found(source: str, count: int) -> None:
    """`a device` is advised against where it follows a size, also one that an f-string inserts."""
    assert [each.word for each in find_advisory(python_passages("a.py", source))] == ["a device"] * count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("word " * LONG_SENTENCE + "end.", 1),
        ("word " * (LONG_SENTENCE - 1) + "end. Another one.", 0),
        ("- " + "word " * 20 + "\n- " + "word " * 20, 0),
        ("| " + "word " * 20 + "| " + "word " * 20 + "|", 0),
        ("```\n" + "word " * 50 + "\n```\nText.", 0),
        ("word " * 20 + "\n" + "word " * 20, 1),
    ],
)
def test_long_sentence_is_found(text: str, count: int) -> None:
    """A sentence of more than 35 words is found in a paragraph; a list item, a cell and code are not joined to others."""
    assert len(list(find_long_sentences([Passage("a.md", 1, text, is_prose=True)]))) == count


@pytest.mark.parametrize(
    ("text", "count"), [("x is no array", 1), ("There is no array", 0), ("it is no longer there", 0)]
)
def test_negated_noun_is_found(text: str, count: int) -> None:
    """`is no` is advised against, except after `there` and before `longer`."""
    assert [each.word for each in find_advisory([Passage("a.py", 1, text)])] == ["is no"] * count


def test_long_string_is_not_a_sentence() -> None:
    """Only sentences of Markdown are counted."""
    assert not list(find_long_sentences([Passage("a.py", 1, "word " * 50)]))
