"""Executable documentation pages: which blocks of a page run, and how their real output is compared with the page's.

A block runs if it is one of these; all others are text for readers only:

- A fence without a language that begins with `%` (`%load_ext`, `%mhjax`, `%%mhjax`, `%%local`) is a notebook cell.
- A `python` fence that begins with `# in the notebook` is a notebook cell, too.
- A `console` fence that begins with `$ mhnb ` is a command line, and the rest of the fence is its output.
- `$ mhnb where` below a cell without output runs while that cell hangs. The cell is then interrupted,
  and the first `text` fence below the command is the cell's output.

The `text` fence that follows a cell directly is the cell's output. A fence of the language `ipython` never runs:
use it for cells that need other machines. A line that is only `...` in the output stands for any lines.
In a fence that begins with ```text varies or ```console varies, numbers and hashes may differ: wrong numbers are not the
same twice.
An output with prompts of the debugger is a session: the lines behind its prompts are typed while the cell runs.
The cells of a page with sessions run in a terminal; on other pages no user can type.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.source import ROOT

_FENCE = re.compile(r"^```(?P<language>\w*)(?P<varies> varies)?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_CELL_PREFIXES = {"": "%", "python": "# in the notebook\n"}
_COMMAND_PREFIX = "$ mhnb "
_WATCH_PREFIX = "$ mhnb where"
_SKIP = "..."
_PAGE_TIMEOUT_S = 440
_TYPED = re.compile(r"^ranks? [\d,-]+ \([^)\n]+\) > (?P<line>.*)$", re.MULTILINE)
"""A prompt of the debugger on the ranks, such as `rank 0 (stopped 0-3) > `, and what is typed there."""

_VARIABLE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\b(?:\d+ min )?\d+(?:\.\d+)?(?: ?(?:µs|ms|s|min|h))\b"), "TIME"),
    (re.compile(r"\b\d\d:\d\d(?::\d\d)?\b"), "TIME"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"\bjax \d+(?:\.\d+)+"), "jax VERSION"),
    # A row of %mhjax status: the process id and the memory of a rank.
    (re.compile(r"^( *\d+ +host\d+) +\d+( +\w+ +\d+) +[\d.]+ [KMG]iB", re.MULTILINE), r"\1 N\2 SIZE"),
    (re.compile(r"(?<=[\w\]]):\d{4,5}\b"), ":PORT"),
    (re.compile(r"(?<![\w/])[~/](?:[\w.+-]*/)+[\w.+-]*"), "PATH"),
    (re.compile(r" · \d+ lines? (?:of|from) C\+\+[^·\n]*"), ""),
    # A rank's bar of a trace, and the rank for which the others waited.
    (re.compile(r"^(rank +\d+) [█▒░·? ]+$", re.MULTILINE), r"\1 BAR"),
    (re.compile(r" rank \d+ \(\d+%\)$", re.MULTILINE), ""),
    (re.compile(r"[█▏▎▍▌▋▊▉]+"), "BAR"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)
"""What differs from run to run: colours, durations, times of day, memory, process ids, ports, paths, versions, bars,
the greetings of C++ libraries, spaces at line ends."""

_STRAGGLER = re.compile(r"^.* came last at \d+ of \d+ launches; .*\n?", re.MULTILINE)
_NUMBER_OR_HASH = re.compile(r"-?\b(?:[0-9a-f]*\d[0-9a-f]*)(?:\.\d+)?\b|\b[a-f]{6,}\b")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page that runs."""

    source: str
    """The cell, or the command line without `$ `."""
    kind: Literal["cell", "command", "hanging cell"]
    """A hanging cell is interrupted as soon as the command that follows has shown where it hangs."""
    expected: str | None
    """The output that the page shows; None if it shows none."""
    span: tuple[int, int]
    """Where the shown output is in the page's text."""
    varies: bool = False
    """True if its numbers and hashes differ from run to run."""

    @property
    def typed(self) -> list[str]:
        """The lines that a user types while the block runs."""
        return [] if self.kind == "command" else [match["line"] for match in _TYPED.finditer(self.expected or "")]


def parse_blocks(page: str) -> list[Block]:
    """Return the blocks of a page that run, in order."""
    fences = list(_FENCE.finditer(page))
    blocks = []
    for at, fence in enumerate(fences):
        language, body = fence["language"], fence["body"]
        if language == "console" and body.startswith(_COMMAND_PREFIX):
            command, _, shown = body.partition("\n")
            start = fence.start("body") + len(command) + 1
            span = start, fence.end("body")
            blocks.append(Block(command.removeprefix("$ "), "command", shown, span, bool(fence["varies"])))
        elif (prefix := _CELL_PREFIXES.get(language)) is not None and body.startswith(prefix):
            blocks.append(_parse_cell(page, fence, fences[at + 1 :]))
    return blocks


def _parse_cell(page: str, cell: re.Match[str], later: Sequence[re.Match[str]]) -> Block:
    """Return the block of a cell, with its output, which is in one of the later fences."""
    if later and later[0]["language"] == "text" and not page[cell.end() : later[0].start()].strip():
        return Block(cell["body"], "cell", later[0]["body"], later[0].span("body"), bool(later[0]["varies"]))
    if later and later[0]["language"] == "console" and later[0]["body"].startswith(_WATCH_PREFIX):
        output = next(fence for fence in later if fence["language"] == "text")
        return Block(cell["body"], "hanging cell", output["body"], output.span("body"))
    return Block(cell["body"], "cell", None, (cell.end(), cell.end()))


def run_blocks(blocks: list[Block], folder: Path) -> list[str]:
    """Run the blocks in a process of their own and return their outputs."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.page_session"],
        input=json.dumps([[block.source, block.kind, block.typed] for block in blocks]),
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=_PAGE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def normalize(text: str) -> str:
    """Replace what differs from run to run, so that two runs have the same text. Blank lines are dropped."""
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    # Columns are aligned by the width of what was replaced.
    lines = (re.sub(r"(?<=\S) {2,}", "  ", line) for line in text.splitlines())
    return "\n".join(line for line in lines if line.strip())


def is_same(expected: str, actual: str, *, varies: bool = False) -> bool:
    """Return True if the page shows the real output, apart from what differs from run to run.

    On a busy machine a rank may be late, and mhnb says so: only pages about that have the note.
    """
    if not _STRAGGLER.search(expected):
        actual = _STRAGGLER.sub("", actual)
    if varies:
        expected, actual = (_NUMBER_OR_HASH.sub("#", normalize(text)) for text in (expected, actual))
    parts = [re.escape(part.strip("\n")) for part in re.split(r"^\s*\.\.\.$", normalize(expected), flags=re.MULTILINE)]
    pattern = r"(?:.*)".join(parts)
    return re.fullmatch(pattern, normalize(actual), re.DOTALL) is not None


def rewrite(page: str, outputs: list[tuple[Block, str]], tidy: Callable[[str], str] = str) -> str:
    """Return the page with the real outputs, where it shows different ones. Outputs that are the same stay as they are."""
    for block, actual in sorted(outputs, key=lambda output: output[0].span, reverse=True):
        if block.expected is not None and not is_same(block.expected, actual, varies=block.varies):
            start, end = block.span
            page = page[:start] + _shorten(tidy(actual).strip("\n"), block.expected) + "\n" + page[end:]
    return page


def _shorten(actual: str, expected: str) -> str:
    """Return the output with `...` in place of its middle, if the page has that; with as many lines before and after."""
    lines, shown = actual.splitlines(), expected.splitlines()
    stripped = [line.strip() for line in shown]
    if stripped.count(_SKIP) != 1 or len(lines) <= len(shown):
        return actual
    before = stripped.index(_SKIP)
    after = len(shown) - before - 1
    return "\n".join([*lines[:before], shown[before], *lines[len(lines) - after :]])
