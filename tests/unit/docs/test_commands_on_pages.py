"""Every command line on a page is one that mhnb parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.error import UsageError

from mhnb.cli import main
from mhnb.magics import commands
from mhnb.magics.magics import parse_cell_flags
from tests.support.source import ROOT

_PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
# Words that stand for a value or leave something out: `--to In[7]` is a command, `--profile ...` is a sentence about one.
_ELLIPSES = ("...", "…")


def _find_lines(page: Path) -> Iterator[str]:
    """Yield the command lines of fences, up to a comment or redirection, and the spans of code that begin with a command."""
    fenced = False
    for line in page.read_text().splitlines():
        text = line.strip()
        if text.startswith("```"):
            fenced = not fenced
        elif fenced:
            yield re.split(r"\s{2,}|\s[#>]\s", text.removeprefix("$ "))[0]
        else:
            yield from re.findall(r"(?<!`)`([^`]+)`(?!`)", line)


def _list_commands(prefix: str) -> list[str]:
    return sorted(
        {
            line.removeprefix(prefix).strip()
            for page in _PAGES
            for line in _find_lines(page)
            if re.match(rf"{re.escape(prefix)}(\s|$)", line) and not any(mark in line for mark in _ELLIPSES)
        }
    )


def _is_synopsis(line: str) -> bool:
    """Check whether a line shows how a command is typed, such as `logs [RANKS]`."""
    return bool(re.search(r"\[[A-Z-]|\|", line))


_MAGICS = [line for line in _list_commands("%mhjax") if line and not _is_synopsis(line)]
_CELLS = [line for line in _list_commands("%%mhjax") if not _is_synopsis(line) and line != "--timeout"]
_SHELL = [line for line in _list_commands("mhnb") if not _is_synopsis(line)]


def test_pages_have_commands() -> None:
    """The pages have many commands of each kind, so the patterns above find them."""
    assert (len(_MAGICS) > 50, len(_CELLS) > 5, len(_SHELL) > 20) == (True, True, True)


@pytest.mark.parametrize("line", _MAGICS)
def test_magics_parse(line: str) -> None:
    """Each `%mhjax` line names a command, and its arguments parse."""
    name, *words = shlex.split(line)
    if commands.takes_code(line) and words and not words[0].startswith("-"):
        words = ["--", line.removeprefix(name).strip()]
    if name == "help":
        assert len(words) <= 1
        return
    parser = commands.command_parser(name)
    assert parser is not None, f"unknown command {name!r}"
    if not words:
        return  # A sentence may name a command without its arguments.
    try:
        parser.parse_args(words)
    except UsageError as error:
        pytest.fail(str(error))


@pytest.mark.parametrize("line", _CELLS)
def test_cell_flags_parse(line: str) -> None:
    """Each `%%mhjax` line parses."""
    try:
        parse_cell_flags(line)
    except UsageError as error:
        pytest.fail(str(error))


@pytest.mark.parametrize("line", _SHELL)
def test_shell_commands_parse(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each `mhnb` line parses."""
    words = shlex.split(line)
    if len(words) == 1:
        assert words[0].startswith("-") or words[0] in main.find_commands(main.build_parser())
        return
    try:
        main.parse_arguments(words)
    except SystemExit:
        pytest.fail(capsys.readouterr().err)
