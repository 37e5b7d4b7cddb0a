"""Build and check the request for a cell before it is sent.

In auto mode, the text of a cell alone decides whether it runs in the notebook or on the ranks.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from mhnb.core.arguments import is_positive_seconds
from mhnb.core.debugging import DebugRequest
from mhnb.core.messages import Breakpoint, DebugMode
from mhnb.core.ranks import describe_ranks, parse_ranks, resolve_ranks
from mhnb.core.state.events import CellRequest
from mhnb.errors import BreakpointRefused, InvalidRequest, NoKeyboard

Route: TypeAlias = Literal["ranks", "here", "local"]
"""`local` runs here too, without its first line `%%local`."""

Guard: TypeAlias = Literal["lockstep", "parity", "off"]
"""When the launches of the ranks are compared: before each launch, after the cell, or not at all."""
GuardName: TypeAlias = Literal["before", "after", "off", "lockstep", "parity"]
"""What a user may write: `before` is lockstep, and `after` is parity."""
_GUARD_ALIASES: dict[str, Guard] = {"before": "lockstep", "after": "parity"}
GUARDS: tuple[Guard, ...] = get_args(Guard)
"""The names that help and messages have."""

_CELL_MAGICS = ("%%mhjax", "%%local")
_MAGIC_WORDS = ("%mhjax", "%mhjax?")
_EXIT_COMMANDS = ("exit", "quit", "exit()", "quit()")
"""They stay in the notebook, because on a rank they are an error and the user wants to quit."""
_DEBUG_COMMAND = "%debug"
"""It stays in the notebook too, where mhnb decides whether the last error was one of the ranks or of the notebook."""
_EXTENSION_MAGICS = ("%load_ext", "%reload_ext", "%unload_ext")
"""Followed by mhnb's own name. Any other extension is for the code, and the code is on the ranks."""


def route_cell(source: str) -> Route:
    r"""Return where a cell runs while auto mode is on.

    Raises:
        InvalidRequest: the cell mixes `%mhjax` lines with code; one half belongs here and the other on the ranks.

    >>> route_cell("%mhjax status"), route_cell("x = %mhjax pull x"), route_cell("exit")
    ('here', 'here', 'here')
    >>> route_cell("%%time\nx = 1"), route_cell("%debug")
    ('ranks', 'here')
    """
    lines = [line for line in (line.strip() for line in source.splitlines()) if line]
    code = [line for line in lines if not line.startswith("#")]
    if not code or code[0].startswith("%%mhjax"):
        return "here"
    if code[0].split()[0] == "%%local":
        return "local"
    if len(code) == 1 and code[0] in (*_EXIT_COMMANDS, _DEBUG_COMMAND):
        return "here"
    magic_lines = [line for line in code if _is_mhnb_line(_strip_assignment(line).split())]
    if not magic_lines:
        return "ranks"
    if len(magic_lines) == len(code):
        return "here"
    raise InvalidRequest(
        f"auto mode is on, and this cell mixes {magic_lines[0]!r} with code, so it was not run; put the %mhjax lines into a separate cell"
    )


def _strip_assignment(line: str) -> str:
    """Remove an assignment target before `%mhjax`, unless it has an unclosed quote."""
    target, sign, rest = line.partition("=")
    is_target = sign and rest.lstrip().startswith("%mhjax") and not any(target.count(quote) % 2 for quote in "\"'")
    return rest.lstrip() if is_target else line


def _is_mhnb_line(words: Sequence[str]) -> bool:
    return words[0] in _MAGIC_WORDS or (words[0] in _EXTENSION_MAGICS and words[1:] == ["mhnb"])


def strip_leading_blank_lines(source: str) -> str:
    r"""Remove leading blank lines, as IPython does: it does not count them.

    >>> strip_leading_blank_lines("\n  \nx = 1\n")
    'x = 1\n'
    """
    lines = source.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if line.strip()), 0)
    return "".join(lines[first:])


# -- a cell magic that is not in the first line


def find_first_code(lines: Sequence[str]) -> int | None:
    """Return the index of the first line of code, or None.

    >>> find_first_code(["# text", "", "x = 1"]), find_first_code(["# text"])
    (2, None)
    """
    return next((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), None)


def lift_cell_magic(lines: Sequence[str]) -> list[str]:
    r"""Move a `%%mhjax` or `%%local` line above the comments before it.

    IPython takes a cell magic in the first line only. The comments follow it, so lines of code keep their numbers.

    >>> lift_cell_magic(["# text\n", "%%mhjax\n", "x = 1\n"])
    ['%%mhjax\n', '# text\n', 'x = 1\n']
    """
    at = find_first_code(lines)
    if not at or not _is_cell_magic(lines[at]):
        return list(lines)
    above, magic_line, body = lines[:at], lines[at].rstrip("\n") + "\n", lines[at + 1 :]
    first = find_first_code(body)
    if first is not None and body[first].startswith("%%"):
        # This magic has to be the first line of the rest. Blank lines keep the count, and no comment gets into its text.
        above = ["\n"] * at
    return [magic_line, *above, *body]


def find_misplaced_magic(lines: Sequence[str]) -> int | None:
    r"""Return the index of a `%%mhjax` or `%%local` line below code.

    >>> find_misplaced_magic(["x = 1\n", "%%mhjax\n"]), find_misplaced_magic(["x = '''\n", "%%mhjax\n", "'''\n"])
    (1, None)
    """
    first = find_first_code(lines)
    if first is not None and _is_cell_magic(lines[first]):
        below = find_misplaced_magic(lines[first + 1 :])
        return None if below is None else first + 1 + below
    if first is None or lines[first].startswith("%%"):
        # The rest of the cell is the text of that magic.
        return None
    candidates = (at for at in range(first + 1, len(lines)) if _is_cell_magic(lines[at]))
    return next((at for at in candidates if _ends_a_statement("".join(lines[:at]))), None)


def _is_cell_magic(line: str) -> bool:
    return line.startswith("%%") and line.split(maxsplit=1)[0] in _CELL_MAGICS


def _ends_a_statement(source: str) -> bool:
    """Return whether no string, bracket or continued line is open."""
    try:
        deque(tokenize.generate_tokens(io.StringIO(source).readline), maxlen=0)
    except (tokenize.TokenError, SyntaxError):
        return False
    return True


# -- build and check the request for a cell


def guard_argument(text: str) -> str:
    """Replace an older guard name with the present one, without a check."""
    return _GUARD_ALIASES.get(text, text)


def check_guard(guard: str) -> Guard:
    """Check a guard's name and replace an older one, such as `before`.

    Raises:
        InvalidRequest: the guard does not exist.

    >>> check_guard("parity"), check_guard("before")
    ('parity', 'lockstep')
    """
    name = guard_argument(str(guard))
    if name in GUARDS:
        return name
    raise InvalidRequest(f"--guard {guard!r}: expected lockstep, parity or off")


def build_cell_request(
    source: str,
    process_count: int,
    *,
    guard: str,
    ranks: str | Sequence[int] | None = None,
    timeout_s: float | None = None,
    on_snapshot: object = None,
) -> CellRequest:
    r"""Check the arguments of a cell and return its request.

    Raises:
        InvalidRequest: the source is not text, a rank does not exist, the guard is unknown, or the time limit is not valid.

    >>> build_cell_request("\nx = 1", 4, guard="lockstep").source
    'x = 1'
    """
    if not isinstance(source, str):
        raise InvalidRequest(f"a cell must be text, got {type(source).__name__}: {source!r:.80}")
    if on_snapshot is not None and not callable(on_snapshot):
        # An error after the start would leave a cell that no caller follows.
        raise InvalidRequest(f"on_snapshot={on_snapshot!r:.80}: expected a function of one argument, the result so far")
    chosen = resolve_ranks(ranks, process_count)
    if timeout_s is not None and not is_positive_seconds(timeout_s):
        raise InvalidRequest(f"--timeout {timeout_s!r}: expected a number of seconds above 0")
    return CellRequest(strip_leading_blank_lines(source), chosen, check_guard(guard), timeout_s)


# -- where a cell stops for the user


_BREAKPOINT = re.compile(r"(?P<lines>[0-9]{1,9}(?:[\s,]+[0-9]{1,9})*)(?P<condition>\s+if\b.*)?", re.DOTALL)


def resolve_stop_ranks(spec: str, cell_ranks: str | None, process_count: int) -> tuple[int, ...]:
    """Return the ranks of a cell that stop before its first line.

    Args:
        spec: as typed after `--debug`; `all` or empty for every rank of the cell.
        cell_ranks: as typed after `--ranks`; None for all.
        process_count: number of ranks of the cluster.

    Raises:
        InvalidRequest: a rank does not exist, or does not run the cell.

    >>> resolve_stop_ranks("", "0-1", 4), resolve_stop_ranks("2", None, 4)
    ((0, 1), (2,))
    """
    running = resolve_ranks(cell_ranks, process_count) or tuple(range(process_count))
    if spec in ("", "all"):
        return running
    chosen = parse_ranks(spec, process_count, argument="--debug")
    if missing := [rank for rank in chosen if rank not in running]:
        raise InvalidRequest(
            f"--debug {spec}: the cell does not run on {describe_ranks(missing)}, only on {describe_ranks(running)}"
            f"\n  Fix: %%mhjax --ranks {cell_ranks} --debug"
        )
    return chosen


def parse_breakpoints(text: str) -> tuple[Breakpoint, ...]:
    """Parse the value of `--break`: one line or several, and a condition.

    Raises:
        InvalidRequest: it has another form, or the condition is no Python expression.

    >>> parse_breakpoints("12 if rank == 2")
    (Breakpoint(line=12, condition='rank == 2'),)
    >>> [each.line for each in parse_breakpoints("4, 9")]
    [4, 9]
    """
    found = _BREAKPOINT.fullmatch(text.strip())
    lines = [] if found is None else list(dict.fromkeys(map(int, re.findall(r"[0-9]+", found["lines"]))))
    if found is None or 0 in lines:
        raise InvalidRequest(
            f"--break {text!r}: expected a line of the cell, and a condition if you want"
            "\n  Fix: %%mhjax --break '12 if rank == 2'"
        )
    condition = (found["condition"] or "").strip().removeprefix("if").strip()
    if found["condition"] is not None:
        _check_condition(condition)
    return tuple(Breakpoint(line, condition) for line in lines)


def _check_condition(condition: str) -> None:
    """Check a condition's syntax before any rank reaches its line."""
    if not condition:
        raise InvalidRequest("--break: the condition after `if` is missing\n  Fix: %%mhjax --break '12 if rank == 2'")
    try:
        compile(condition, "<condition>", "eval")
    except SyntaxError as error:
        # It is 0 if the compiler has read all of the text and expects more.
        marker = "^".rjust(error.offset or len(condition) + 1)
        raise InvalidRequest(
            f"--break: the condition is not a Python expression: {error.msg}\n    {condition}\n    {marker}"
        ) from error
    except ValueError as error:
        # Before Python 3.12 a null byte is not a SyntaxError.
        raise InvalidRequest(f"--break: the condition {condition!r} is not a Python expression: {error}") from error


def check_breakpoints(breakpoints: Sequence[Breakpoint], source: str, first_line: int) -> None:
    r"""Check that each breakpoint is at a line of code.

    Args:
        breakpoints: by the lines that the notebook shows.
        source: of the cell.
        first_line: the number that the notebook gives the first line of the source that is not blank.

    Raises:
        InvalidRequest: the cell has no such line, or the line is blank or a comment.

    >>> check_breakpoints([Breakpoint(3)], "x = 1\ny = 2", 2)
    """
    lines = strip_leading_blank_lines(source).rstrip().split("\n")
    for line in (each.line for each in breakpoints):
        at = line - first_line
        if not 0 <= at < len(lines):
            where = f"line {first_line}" if len(lines) == 1 else f"lines {first_line}-{first_line + len(lines) - 1}"
            found = f"has no code in line {line}; its code is in {where}"
        elif not lines[at].strip() or lines[at].lstrip().startswith("#"):
            found = f"cannot stop at line {line}, which is {'a comment' if lines[at].strip() else 'blank'}"
        else:
            continue
        raise InvalidRequest(f"--break {line}: this cell {found}. It was not run")


# -- when code may not stop


_NEEDS_LOCKSTEP = (
    "the other ranks would not wait for a rank that has stopped, because this cell runs with --guard {guard}\n"
    "  Fix: %%mhjax --guard lockstep\n"
    "  Or: %%mhjax --debug"
)
_UNAVAILABLE = (
    "the other ranks would not wait for a rank that has stopped, because the guard is unavailable (%mhjax status has the reason)\n"
    '  Fix: jax.debug.print("{x}", x=x) or print(x) at that line\n'
    "  Or: after an error, %mhjax debug"
)
_ACCEPTED = (
    "the ranks may be at different launches since %mhjax accept, so a rank that has stopped could not hold the others\n"
    "  Fix: %mhjax restart --replay"
)


def find_stop_refusal(guard: str, *, guard_available: bool, was_accepted: bool) -> str:
    """Return why ranks may not stop in a cell; otherwise empty.

    Args:
        guard: in force for the cell.
        guard_available: whether the hooks of the guard fit the installed JAX.
        was_accepted: whether the user has accepted a split or tainted cluster in this generation.

    >>> find_stop_refusal("lockstep", guard_available=True, was_accepted=False)
    ''
    >>> find_stop_refusal("off", guard_available=True, was_accepted=False).splitlines()[1]
    '  Fix: %%mhjax --guard lockstep'
    """
    if not guard_available:
        return _UNAVAILABLE
    if guard != "lockstep":
        return _NEEDS_LOCKSTEP.format(guard=guard)
    return _ACCEPTED if was_accepted else ""


def make_debug_mode(request: DebugRequest | None, refusal: str, *, is_replay: bool) -> DebugMode | None:
    """Return the debugger's settings for ranks; None if nothing can be typed.

    >>> make_debug_mode(DebugRequest(stop_ranks=(2,)), "", is_replay=False)
    DebugMode(refusal='', stop_ranks=[2], breakpoints=[], is_replay=False)
    """
    errors = frozenset[str]() if request is None else request.replayed_errors
    if is_replay and NoKeyboard.__name__ not in errors:
        is_refused = BreakpointRefused.__name__ in errors
        return DebugMode("it did not stop when the cell first ran" if is_refused else "", is_replay=not is_refused)
    if request is None or is_replay:
        return None
    stop_ranks = None if request.stop_ranks is None else list(request.stop_ranks)
    # To inspect what an earlier cell left, no rank has to be held.
    return DebugMode("" if request.is_post_mortem else refusal, stop_ranks, list(request.breakpoints))
