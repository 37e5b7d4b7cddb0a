"""Print the words of the project that a reader may stumble over: `python -m tests.policy.words [--banned] [PATH ...]`.

It reads what a user or contributor reads: string literals, docstrings and comments of Python files, the other files of the
package line by line, Markdown, and both kinds of cells of notebooks. Identifiers in code are not read. Words of the banned list
fail `test_words.py`; words of the advisory list and long sentences are only listed.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.source import ROOT

LONG_SENTENCE = 35
"""Words of a sentence in Markdown from which it is listed."""

BANNED: Mapping[str, str] = {
    "shall": "should",
    "for ever": "forever",
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "mending": "fixing",
    "otherwise than": "differently from",
    "is none": "say what does not exist, or 'is not a ...'; in a docstring '..., or None'",
    "are none": "say what does not exist; in a docstring '..., or None'",
    "no such verb": "unknown command",
    "is told": "name who reports it",
    "lies on": "is on, is stored on",
    "stands under": "is inside",
}
"""Word -> what to write instead. `None`, the value, is not the word `none`."""

ADVISORY: Mapping[str, str] = {
    "whoever": "name the actor",
    "somebody": "name the actor",
    "someone": "name the actor",
    "nobody": "name the actor: no rank, no notebook",
    "anybody": "name the actor",
    "everybody": "every rank, every user",
    "be it": "whether ... or ...",
    "hold that": "check that",
    "was asked for": "requested",
    "brings back": "restores",
    "thereby": "say it in a second sentence",
    "dear": "expensive",
    "dearest": "most expensive",
    "alike": "the same",
    "anyhow": "leave it out",
    "there is no such": "unknown",
    "that is none": "that does not exist, or 'is not a ...'",
    "goes on": "continues",
    "went on": "continued",
    "lies": "is",
    "lie": "are",
    "gave up": "stopped waiting",
    "take over": "attach to",
    "takes over": "attaches to",
    "looked at": "checked",
    "cure": "fix",
    "odd one": "the rank that differs",
    "verb": "command",
    "let go of": "detach from",
}
"""Word -> what to write instead, where the word has the meaning that a reader stumbles over."""

EXCEPTIONS: Mapping[tuple[str, str], str] = {}
"""File and banned word that is unavoidable there, such as in a quotation -> why."""

_LINES = (".css", ".js", ".toml", ".yaml", ".yml", ".sh", ".txt")
"""Files that are read line by line, as text."""
_DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
_FOLDERS = ("mhnb", "docs", "notebooks", "profiles")


@dataclass(frozen=True, slots=True)
class Passage:
    """A connected text: one string, one comment, one cell or one file."""

    path: str
    line: int
    """Line of the file on which the text begins."""
    text: str
    is_prose: bool = False
    """Whether it is Markdown, whose sentences are counted."""
    lines: tuple[int, ...] = ()
    """Lines of the file, one per line of the text; empty if they follow one another."""

    def line_at(self, offset: int) -> int:
        """Return the line of the file at an offset of the text."""
        index = self.text.count("\n", 0, offset)
        return self.lines[min(index, len(self.lines) - 1)] if self.lines else self.line + index


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """One word, or one long sentence, in one place."""

    path: str
    line: int
    word: str
    suggestion: str

    def __str__(self) -> str:
        """Format the finding as a compiler does."""
        return f"{self.path}:{self.line}: {self.word}: {self.suggestion}"


# -- what is read


@cache
def read_project() -> list[Passage]:
    """Return every text of this project that a reader meets; read once."""
    return list(read_passages(ROOT))


def read_passages(root: Path) -> Iterator[Passage]:
    """Yield every text that a reader meets in a project's folder."""
    files = [root / name for name in _DOCUMENTS]
    files += [path for folder in _FOLDERS for path in sorted((root / folder).rglob("*")) if path.is_file()]
    for path in files:
        name = path.relative_to(root)
        if not any(part.startswith((".", "_build", "__pycache__")) for part in name.parts) and path.exists():
            yield from read_file(name.as_posix(), path)


def read_file(name: str, path: Path) -> Iterator[Passage]:
    """Yield the texts of one file; none if it is of a kind that has no text."""
    suffix = path.suffix
    if suffix == ".py":
        yield from python_passages(name, path.read_text(encoding="utf-8"))
    elif suffix == ".ipynb":
        yield from notebook_passages(name, path.read_text(encoding="utf-8"))
    elif suffix == ".md":
        yield Passage(name, 1, path.read_text(encoding="utf-8"), is_prose=True)
    elif suffix in _LINES:
        yield Passage(name, 1, path.read_text(encoding="utf-8"))


def python_passages(name: str, source: str) -> Iterator[Passage]:
    """Yield the string literals and docstrings of Python source as Python joins them, and its comments.

    Args:
        name: path of the file.
        source: its text.

    Raises:
        SyntaxError: the source is not Python.
    """
    for node in ast.walk(ast.parse(source)):
        # A part of an f-string has the place of the whole f-string before Python 3.12.
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Passage(name, node.lineno, node.value, lines=_lines_of_string(node))
    yield from _comment_passages(name, source)


def _lines_of_string(node: ast.Constant) -> tuple[int, ...]:
    """Return the line of each line of a string; one line for all, if the string is not written as it reads."""
    count, last = str(node.value).count("\n"), node.end_lineno or node.lineno
    return tuple(range(node.lineno, last + 1)) if last - node.lineno == count else (node.lineno,)


def _comment_passages(name: str, source: str) -> Iterator[Passage]:
    """Yield each block of comment lines as one text, because a sentence may go over several lines."""
    block: list[str] = []
    begin = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != begin + len(block):
                yield Passage(name, begin, "\n".join(block))
                block = []
            if not block:
                begin = token.start[0]
            block.append(token.string.lstrip("#: "))
    if block:
        yield Passage(name, begin, "\n".join(block))


def notebook_passages(name: str, text: str) -> Iterator[Passage]:
    """Yield the Markdown cells of a notebook, and the strings, comments and magic lines of its code cells."""
    stored = text.splitlines()
    position = 0
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        lines = []
        for line in source.splitlines(keepends=True):
            position = _find_stored(stored, line, position)
            lines.append(position + 1)
        if cell["cell_type"] == "markdown":
            yield Passage(name, lines[0] if lines else 1, source, is_prose=True, lines=tuple(lines))
        elif lines:
            yield from _code_cell_passages(name, source, lines)


def _find_stored(stored: Sequence[str], line: str, begin: int) -> int:
    """Return the index of the line of JSON that holds a line of source; `begin` if the file is written differently."""
    forms = {json.dumps(line), json.dumps(line, ensure_ascii=False)}
    return next((i for i in range(begin, len(stored)) if stored[i].strip().rstrip(",") in forms), begin)


def _code_cell_passages(name: str, source: str, lines: Sequence[int]) -> Iterator[Passage]:
    python = []
    for number, line in zip(lines, source.splitlines(), strict=True):
        is_magic = line.lstrip().startswith(("%", "!"))
        if is_magic:
            yield Passage(name, number, line)
        python.append(re.sub(r"\S.*", "pass", line) if is_magic else line)
    try:
        found = list(python_passages(name, "\n".join(python)))
    except (SyntaxError, tokenize.TokenError):
        # A cell of another language, or one that is wrong on purpose: all of it is read.
        yield Passage(name, lines[0], source, lines=tuple(lines))
        return
    for passage in found:
        inner = passage.lines or range(passage.line, passage.line + passage.text.count("\n") + 1)
        placed = tuple(lines[min(line, len(lines)) - 1] for line in inner)
        yield Passage(name, placed[0], passage.text, lines=placed)


# -- what is found


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Compile a search for whole words, whatever their case, except that the value `None` is not the word `none`."""
    ordered = sorted(words, key=len, reverse=True)
    parts = (re.escape(word).replace(r"\ ", r"\s+").replace("none", "(?-i:none)") for word in ordered)
    return re.compile(rf"(?i:\b(?:{'|'.join(parts)})\b)")


_BANNED, _ADVISORY = _pattern(BANNED), _pattern(ADVISORY)
_FORMS = (
    # A rate, such as `8 B a device`. The number may be a value of an f-string, whose next part begins with the words.
    (re.compile(r"(?:^|\b(?:bytes?|B|KiB|MiB|GiB|numbers?))\s+(a device)\b"), "per device"),
    # `x is no array`; `there is no cluster` is plain.
    (re.compile(r"(?<!\bthere )(?<!\bThere )\b(is no)\s+(?!longer\b|more\b)[a-z]"), "is not a"),
)
"""Forms that are advised against, in their first group, and what to write instead."""


def find_banned(
    passages: Iterable[Passage], *, exceptions: Mapping[tuple[str, str], str] = EXCEPTIONS
) -> list[Finding]:
    """Return the words of the banned list that no exception allows."""
    found = set(_find(passages, _BANNED, BANNED))
    return sorted(each for each in found if (each.path, each.word) not in exceptions)


def find_advisory(passages: Iterable[Passage]) -> list[Finding]:
    """Return the words of the advisory list, and the long sentences of Markdown."""
    texts = list(passages)
    forms = (
        Finding(each.path, each.line_at(match.start(1)), " ".join(match[1].split()), suggestion)
        for each in texts
        for pattern, suggestion in _FORMS
        for match in pattern.finditer(each.text)
    )
    return sorted({*_find(texts, _ADVISORY, ADVISORY), *forms, *find_long_sentences(texts)})


def _find(passages: Iterable[Passage], pattern: re.Pattern[str], words: Mapping[str, str]) -> Iterator[Finding]:
    for passage in passages:
        for match in pattern.finditer(passage.text):
            word = " ".join(match[0].lower().split())
            yield Finding(passage.path, passage.line_at(match.start()), word, words[word])


def find_long_sentences(passages: Iterable[Passage]) -> Iterator[Finding]:
    """Yield the sentences of Markdown that have more than 35 words. Code between fences has no sentences."""
    for passage in passages:
        if not passage.is_prose:
            continue
        for offset, block in _prose_blocks(passage.text):
            for match in re.finditer(r"\S.*?(?:[.!?:][*_`)\"]*(?=\s|$)|$)", block, re.DOTALL):
                if (count := len(match[0].split())) > LONG_SENTENCE:
                    line = passage.line_at(offset + match.start())
                    yield Finding(passage.path, line, "long sentence", f"{count} words; split it")


def _prose_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, list items and table cells, each with its offset in the text."""
    prose = re.sub(
        r"^(```|~~~).*?^\1", lambda fence: re.sub(r"[^\n]", " ", fence[0]), text, flags=re.DOTALL | re.MULTILINE
    )
    begin = 0
    for end in [*re.finditer(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.|#+)\s)|\|", prose), None]:
        yield begin, prose[begin : end.start() if end else len(prose)]
        begin = end.end() if end else begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings. Return 1 if a banned word is among them."""
    parser = argparse.ArgumentParser(prog="python -m tests.policy.words", description=__doc__)
    parser.add_argument("path", nargs="*", help="only files and folders with these beginnings, such as mhnb/teach")
    parser.add_argument("--banned", action="store_true", help="only the words that fail the test")
    options = parser.parse_args(arguments)
    passages = [each for each in read_project() if each.path.startswith(tuple(options.path) or "")]
    banned, advisory = find_banned(passages), [] if options.banned else find_advisory(passages)
    for finding in banned:
        print(f"{finding}  [banned]")
    for finding in advisory:
        print(finding)
    print(f"{len(banned)} banned, {len(advisory)} to look over", file=sys.stderr)
    return 1 if banned else 0


if __name__ == "__main__":
    sys.exit(main())
