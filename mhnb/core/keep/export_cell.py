"""Translate one cell to plain Python; IPython syntax without a translation is refused by name.

The translation uses only the text and never runs it. `export` combines cells into a script.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["TranslatedCell", "indent_code", "translate_cell"]

_MAGIC = re.compile(r"^\s*(?:[\w.,\s]+=\s*)?(?P<magic>%%?\w*|!|\?)|\S+\?{1,2}\s*$")
_TIMED = ("%time", "%timeit")
_DROPPED = ("%matplotlib", "%config", "%load_ext", "%reload_ext", "%autoreload", "%pdb", "%xmode", "%precision")
_DROPPED_CELL = ("%%time", "%%capture")
_SHELL_NAMES = {"get_ipython", "In", "Out", "_", "__", "___"}
_REFUSAL_REASONS = {
    "!": "a shell command; use subprocess, or do it in the batch script",
    "?": "help is shown in a notebook only",
    "await": "await at top level; put it into `async def main()` and call `asyncio.run(main())`",
    "mhnb": "the script runs without mhnb",
}


@dataclass(frozen=True, slots=True)
class TranslatedCell:
    """A cell as plain Python."""

    text: str
    """As many lines as the cell had; a dropped line is empty."""
    notes: tuple[str, ...] = ()
    """What was changed or dropped, each with its line."""
    refused: tuple[str, ...] = ()
    """What cannot be translated, each with its line; if there is anything, `text` is not valid."""
    futures: tuple[str, ...] = ()
    """Names from `__future__`, which must be imported at the top of the script."""
    shows_value: bool = False
    """Whether its last expression became a call of `_show`."""
    uses_display: bool = False
    """Whether it calls IPython's `display`."""
    initializes_distributed: bool = False
    """Whether it calls jax.distributed.initialize itself."""


def translate_cell(source: str) -> TranslatedCell:
    r"""Translate a cell to plain Python.

    >>> translate_cell("%time y = f(x)\ny").text
    'y = f(x)\n_show(y)'
    >>> translate_cell("!ls").refused
    ('line 1: !ls: a shell command; use subprocess, or do it in the batch script',)
    """
    lines = source.rstrip().split("\n")
    notes: list[str] = []
    refused = _remove_cell_magics(lines, notes)
    tree = None if refused else _parse(lines, notes, refused)
    if tree is None:
        return TranslatedCell("\n".join(lines), tuple(notes), tuple(refused))
    refused += [f"line {line}: {what}" for line, what in sorted(_find_untranslatable(tree))]
    futures = _remove_future_imports(tree, lines)
    shows = _print_last_value(tree, lines)
    return TranslatedCell(
        "\n".join(lines).strip("\n"),
        tuple(notes),
        tuple(refused),
        futures,
        shows,
        _only_reads(tree, "display"),
        any(_is_initialize(node) for node in ast.walk(tree)),
    )


# -- magics


def _remove_cell_magics(lines: list[str], notes: list[str]) -> list[str]:
    """Remove the leading `%%` lines of a cell; return those that are refused."""
    for at, line in enumerate(lines):
        if line.strip() and not line.startswith("%%"):
            break
        word = (line.split() or [""])[0]
        if word in _DROPPED_CELL:
            notes.append(f"line {at + 1}: {word} dropped")
            lines[at] = ""
        elif word:
            return [f"line {at + 1}: {word}: a magic of the notebook; write it as Python"]
    return []


def _parse(lines: list[str], notes: list[str], refused: list[str]) -> ast.Module | None:
    """Parse the cell, translating the lines that stop the parser to Python one by one."""
    for _ in range(len(lines) + 1):
        try:
            return ast.parse("\n".join(lines))
        except SyntaxError as error:
            at = _find_magic(lines, error.lineno or 1)
            if at is None:
                refused.append(f"line {error.lineno}: {error.msg}: this is no Python")
                return None
            if not _translate_line(lines, at, notes, refused):
                return None
    return None


def _find_magic(lines: Sequence[str], lineno: int) -> int | None:
    """Return the index of the magic that stops the parser: the line that it names, else the first that looks like a magic."""
    likely = [at for at, line in enumerate(lines) if _MAGIC.search(line)]
    named = min(lineno, len(lines)) - 1
    return named if named in likely else next(iter(likely), None)


def _translate_line(lines: list[str], at: int, notes: list[str], refused: list[str]) -> bool:
    line = lines[at].strip()
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    word, _, rest = line.partition(" ")
    if word in _TIMED and rest and not rest.startswith("-"):
        notes.append(f"line {at + 1}: {word} dropped, its statement kept")
        lines[at] = indent + rest.strip()
    elif word in _DROPPED:
        notes.append(f"line {at + 1}: {line} dropped")
        # A block must not be empty.
        lines[at] = f"{indent}pass" if indent else ""
    else:
        refused.append(f"line {at + 1}: {line}: {_refusal_reason(line)}")
        return False
    return True


def _refusal_reason(line: str) -> str:
    if line.startswith("%mhjax"):
        return "belongs to the notebook, and the script runs without mhnb"
    found = _MAGIC.search(line)
    sign = (found["magic"] or "?")[0] if found else "?"
    return _REFUSAL_REASONS.get(sign, "a magic of the notebook; write it as Python")


# -- what does not exist in a script


def _find_untranslatable(tree: ast.Module) -> Iterator[tuple[int, str]]:
    yield from ((line, _REFUSAL_REASONS["await"]) for line in map(_await_line, _at_top_level(tree)) if line)
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if name := _imported_mhnb_module(node):
            yield node.lineno, f"import {name}: {_REFUSAL_REASONS['mhnb']}"  # type: ignore[attr-defined]
        elif isinstance(node, ast.Name) and node.id in _SHELL_NAMES - stored:
            yield node.lineno, f"{node.id}: is there in a notebook only"


def _await_line(node: ast.AST) -> int:
    """Return the line of a node that needs a running event loop; 0 for any other node."""
    if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
        return node.lineno
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp) and any(part.is_async for part in node.generators):
        return node.lineno
    return 0


def _at_top_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node that is not inside a function."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _at_top_level(child)


def _imported_mhnb_module(node: ast.AST) -> str:
    """Return the module of mhnb that a statement imports; empty for any other statement."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    return next((name for name in names if name.partition(".")[0] == "mhnb"), "")


def _is_initialize(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("distributed.initialize")


def _only_reads(tree: ast.Module, name: str) -> bool:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    bound = any(
        (alias.asname or alias.name) == name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )
    return bool(names) and not bound and all(isinstance(node.ctx, ast.Load) for node in names)


# -- changes to the cell's lines


def _remove_future_imports(tree: ast.Module, lines: list[str]) -> tuple[str, ...]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            found += [alias.name for alias in node.names]
            for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[at] = ""
    return tuple(found)


def _print_last_value(tree: ast.Module, lines: list[str]) -> bool:
    """Make the script print the value of a cell's last expression, as a notebook does; return whether it does."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or _is_print(last.value) or _ends_with_semicolon(last, lines):
        return False
    opening, closing = ("_show((", "))") if isinstance(last.value, ast.Tuple) else ("_show(", ")")
    end = last.end_lineno or last.lineno
    # Insert from the end, because an insertion moves what follows it.
    _insert(lines, end, last.end_col_offset or 0, closing)
    _insert(lines, last.lineno, last.col_offset, opening)
    return True


def _is_print(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("print", "display")


def _ends_with_semicolon(last: ast.Expr, lines: Sequence[str]) -> bool:
    line = lines[(last.end_lineno or last.lineno) - 1].encode()
    return line[last.end_col_offset or 0 :].decode().strip().startswith(";")


def _insert(lines: list[str], lineno: int, col_offset: int, text: str) -> None:
    """Insert text at a column as the parser counts it: in bytes."""
    line = lines[lineno - 1].encode()
    lines[lineno - 1] = (line[:col_offset] + text.encode() + line[col_offset:]).decode()


# -- a cell for some ranks


def indent_code(text: str) -> str:
    r"""Indent Python by four spaces, except lines inside a string, because they are part of its value.

    >>> indent_code('x = 1\ny = 2')
    '    x = 1\n    y = 2'
    """
    inside = {line for first, last in _string_lines(text) for line in range(first + 1, last + 1)}
    lines = text.split("\n")
    return "\n".join(
        line if number in inside or not line.strip() else f"    {line}" for number, line in enumerate(lines, 1)
    )


def _string_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each string; f-strings are several tokens from Python 3.12 on."""
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            yield token.start[0], token.end[0]
        elif kind == "FSTRING_START":
            opened.append(token.start[0])
        elif kind == "FSTRING_END":
            yield opened.pop(), token.end[0]
