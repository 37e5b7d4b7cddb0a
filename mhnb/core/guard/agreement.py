"""What the participants of a launch make of what each of them posted: launch, stop, or say where they differ.

Every participant decides from the same facts, so all of them decide the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from mhnb.core.guard.outlines import CALLBACK
from mhnb.core.guard.provenance import find_conflict, join_free
from mhnb.core.guard.rules import LaunchDifference, LaunchSide, format_difference
from mhnb.core.guard.threads import MAIN_THREAD, UNKNOWN_THREAD, format_thread
from mhnb.core.ranks import format_ranks, say_ranks
from mhnb.values import Outcome

__all__ = [
    "ENDINGS",
    "Ending",
    "LINE_LIMIT",
    "MARKS",
    "MOST_LINES",
    "MismatchDetails",
    "Stand",
    "format_behind",
    "format_mismatch",
    "format_outside",
    "format_ring",
    "judge_launch",
    "leave_state_out",
    "letter_origins",
    "want_the_same",
]

Ending: TypeAlias = Outcome | Literal["left"]

ENDINGS: tuple[Ending, ...] = ("ok", "error", "interrupted", "skipped", "died", "left")
"""How a cell ended on a rank; its place here is what goes on the board. `left`: it refused a launch for what it had left before."""

MARKS = ("stands", "interrupted", "ring", "cell ended", "lost")
"""What became of a post; its place here is what goes on the board."""

MOST_LINES, LINE_LIMIT = 3, 1 << 21
"""A message names at most so many lines for a launch: the innermost and two that called it. Each is below the limit."""

_WORDS: dict[Ending, str] = {
    "error": "raised an error before it",
    "interrupted": "was interrupted before it",
    "skipped": "does not run this cell (--ranks)",
    "died": "was lost before it: it died, or its connection did",
    "left": "refused it: a collective that it left in an earlier cell still waits",
}
_NOTHING = "nothing was launched"
_INTACT = f"{_NOTHING}, the cluster is clean"
_SAME_STEPS = (
    "  The program is the same, the arrays are not: a rank ran something alone before it, gave another value, or chose or made an"
    " array by its rank.\n  Below the cell is said which array it is. Make it by the same steps on every rank;"
    " what is to differ on purpose is made on every rank in a cell with --guard off."
)
_ONE_THREAD = (
    "  Two threads or tasks of the cell launch, and which of them comes first differs between the ranks.\n"
    "  Launch from one thread, or let each wait for the other in a fixed order."
)


@dataclass(frozen=True, slots=True)
class MismatchDetails:
    """What a mismatch names beside its programs."""

    differences: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """What each of several programs of one name has where the others have something else, by fingerprint."""
    threads: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """The labels of threads, by kind."""


_NO_DETAILS = MismatchDetails()
_MAGIC_LINE = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)
_RANK = re.compile(r"process_index|process_id|\b(?:my_?)?rank\b")
"""In a condition: it asks which rank this is."""
_AFTER_LEFT = "  Wait until that one ends, if it does; else %mhjax restart --replay"


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one participant stands at a launch."""

    rank: int
    fingerprint: int | None = None
    """None: its cell ended without the launch."""
    lines: tuple[int, ...] = ()
    """Of the cell: the innermost, and those that called it."""
    stopped: bool = False
    """It had been asked to stop when it posted, or was stopped while it waited."""
    handles: bool = False
    """It had stopped together with others before, and wants this to handle that."""
    ending: Ending = "ok"
    """How its cell ended; of meaning only where it did not post."""
    origin: int = 0
    """What the arrays are known by that it would launch on, as a hash."""
    thread: int = UNKNOWN_THREAD
    """Which thread or task of the cell would launch it."""


def leave_state_out(text: str) -> str:
    """Return the words of a mismatch without the state: a rank knows of its own launch, and not what else the cell did.

    >>> leave_state_out("nothing was launched, the cluster is clean")
    'nothing was launched'
    """
    return text.replace(_INTACT, _NOTHING)


def judge_launch(stands: Sequence[Stand], *, interrupted: bool) -> str:
    """Say what all participants do: `launch`, `interrupt`, `mismatch`, or `again`.

    Again they are asked, about those arrays only that can be compared on every rank.

    Args:
        stands: every participant's.
        interrupted: the cell was asked to stop.

    >>> judge_launch([Stand(0, 7), Stand(1, 7)], interrupted=False)
    'launch'
    >>> judge_launch([Stand(0, 7), Stand(1, 7, stopped=True)], interrupted=True)
    'interrupt'
    >>> judge_launch([Stand(0, 7), Stand(1)], interrupted=False)
    'mismatch'
    """
    if any(stand.stopped for stand in stands):
        return "interrupt"
    if len({stand.handles for stand in stands if stand.fingerprint is not None}) > 1:
        # One is past the stop and another before it: the same program on both would mix values of two places in the cell.
        return "interrupt"
    if interrupted and any(stand.fingerprint is None and stand.ending == "interrupted" for stand in stands):
        return "interrupt"
    if not want_the_same(stands):
        return "mismatch"
    return "again" if join_free(stand.origin for stand in stands) else "launch"


def want_the_same(stands: Sequence[Stand]) -> bool:
    """Whether all want one program, in the same thread of the cell, on arrays that came about alike.

    >>> want_the_same([Stand(0, 7, origin=5), Stand(1, 7, origin=5)]), want_the_same([Stand(0, 7, origin=5), Stand(1, 7)])
    (True, False)
    >>> want_the_same([Stand(0), Stand(1)])
    False
    """
    wanted = {stand.fingerprint for stand in stands}
    return len(wanted) == 1 and None not in wanted and not _threads_differ(stands) and not _conflict(stands)


def _threads_differ(stands: Sequence[Stand]) -> bool:
    """Whether two threads of the cell would meet: one that is not known meets any.

    >>> _threads_differ([Stand(0, 7, thread=5), Stand(1, 7, thread=6)]), _threads_differ([Stand(0, 7, thread=5), Stand(1, 7)])
    (True, False)
    """
    return len({stand.thread for stand in stands if stand.thread != UNKNOWN_THREAD}) > 1


def _conflict(stands: Sequence[Stand]) -> list[int]:
    return find_conflict(stand.origin for stand in sorted(stands, key=lambda stand: stand.rank))


def letter_origins(stands: Sequence[Stand]) -> dict[int, str]:
    """Name the arrays of each side by a letter where all want the same program, but not of the same arrays; else none.

    >>> letter_origins([Stand(1, 7), Stand(0, 7, origin=5), Stand(2, 7)]), letter_origins([Stand(0, 7, origin=5), Stand(1)])
    ({5: 'A', 0: 'B'}, {})
    """
    wanted = {stand.fingerprint for stand in stands}
    if len(wanted) > 1 or None in wanted or _threads_differ(stands) or not (origins := _conflict(stands)):
        return {}
    letters = {origin: chr(ord("A") + n % 26) + str(n // 26 or "") for n, origin in enumerate(origins)}
    ordered = sorted(stands, key=lambda stand: stand.rank)
    return {stand.origin: letters.get(stand.origin, "not known yet") for stand in ordered}


def format_mismatch(
    stands: Sequence[Stand],
    names: Mapping[int, str],
    *,
    number: int,
    seq: int,
    source: str,
    details: MismatchDetails = _NO_DETAILS,
) -> str:
    r"""Say who wants what, the same words on every rank.

    Args:
        names: of programs, by fingerprint.
        number: of the launch among those of these participants in the cell, from 1.
        source: the cell's text.
        details: what differs in programs of one name, and the labels of threads.

    >>> print(format_mismatch([Stand(0, 7, (2,)), Stand(1)], {7: "jit(f)"}, number=1, seq=4, source="").split("\n", 1)[1])
    launch 1 of cell 4 differs
      rank 0   jit(f)   line 2
      rank 1   ended the cell without it
    """
    letters = letter_origins(stands)
    in_threads = any(stand.thread not in (UNKNOWN_THREAD, MAIN_THREAD) for stand in stands)
    members: dict[tuple[int | None, int, str], list[Stand]] = {}
    for stand in sorted(stands, key=lambda stand: stand.rank):
        why = _WORDS.get(stand.ending, "") if stand.fingerprint is None else ""
        of = stand.origin if letters else stand.fingerprint
        members.setdefault((of, stand.thread if in_threads else UNKNOWN_THREAD, why), []).append(stand)
    suffixes = {stand.rank: _suffix(stand, letters, details.threads if in_threads else None) for stand in stands}
    sides = tuple(_side(same, names, why, suffixes[same[0].rank]) for (*_, why), same in members.items())
    told = format_difference(LaunchDifference(number - 1, sides), seq, source)
    if any(stand.fingerprint is None and stand.ending == "left" for stand in stands):
        return f"{_NOTHING}\n{told}\n{_AFTER_LEFT}"
    if letters:
        cure = _SAME_STEPS
    elif _threads_differ(stands):
        cure = _ONE_THREAD
    else:
        cure = _cure(source, [line for side in sides for line in side.lines])
    return "\n".join([_INTACT, told, *_format_differences(sides, details.differences), *([cure] if cure else [])])


def _format_differences(sides: Sequence[LaunchSide], differences: Mapping[int, str]) -> list[str]:
    found = [(side, differences.get(int(side.fingerprint, 16), "")) for side in sides if side.fingerprint is not None]
    told = [(say_ranks(side.ranks), difference) for side, difference in found if difference]
    if len(told) < 2:
        return []
    width = max(len(who) for who, _ in told)
    # The result of a callback is part of the program's numbers.
    called = any(text.startswith(CALLBACK) for _, text in told)
    cure = (
        ["  A callback that must differ by rank is one function, which asks jax.process_index() itself."]
        if called
        else []
    )
    return [
        "  The programs have one name and shape, and differ first in:",
        *(f"    {w:{width}}   {text}" for w, text in told),
        *cure,
    ]


def _suffix(stand: Stand, letters: Mapping[int, str], threads: Mapping[int, str] | None) -> str:
    """What is said of a launch beside its program's name."""
    of = f" of arrays {letters[stand.origin]}" if letters else ""
    known = threads is not None and stand.thread != UNKNOWN_THREAD
    return f"{of} in {format_thread(stand.thread, threads or {})}" if known else of


def _side(same: Sequence[Stand], names: Mapping[int, str], why: str, suffix: str) -> LaunchSide:
    ranks, wanted = tuple(stand.rank for stand in same), same[0].fingerprint
    if wanted is None:
        return LaunchSide(ranks, None, None, None, why)
    lines = same[0].lines
    line = lines[0] if lines else None
    return LaunchSide(ranks, f"{wanted:016x}", names.get(wanted, "a program") + suffix, line, callers=lines[1:])


def format_outside(name: str, participants: Sequence[int], chosen: Sequence[int]) -> str:
    """Say that a launch of a `--ranks` cell needs ranks that do not run the cell.

    >>> print(format_outside("jit(f)", (0, 1, 2), (0, 1)))
    nothing was launched, the cluster is clean
      jit(f) needs ranks 0-2, and this cell runs on ranks 0-1 only
      Run it without --ranks, or on a mesh of these ranks' own devices.
    """
    return (
        f"{_INTACT}\n  {name} needs ranks {format_ranks(participants)}, and this cell runs on "
        f"{say_ranks(chosen)} only\n"
        "  Run it without --ranks, or on a mesh of these ranks' own devices."
    )


def format_behind(ranks: Sequence[int]) -> str:
    """Say that this rank has given up more launches than the others can be told of.

    >>> print(format_behind([2]))
    nothing was launched, the cluster is clean
      this rank gave up three launches in a row that rank 2 has yet to come to
      Let it come: do not catch what stops a launch in a loop.
    """
    who = say_ranks(ranks)
    return (
        f"{_INTACT}\n  this rank gave up three launches in a row that {who} "
        f"{'have' if len(ranks) > 1 else 'has'} yet to come to\n  Let it come: do not catch what stops a launch in a loop."
    )


def format_ring(waits: Mapping[int, tuple[str, int | None, Sequence[int]]], seq: int) -> str:
    """Say who waits for whom in a ring of waits.

    Args:
        waits: by rank, the program it wants, the line of the cell, and the ranks it waits for.

    >>> print(format_ring({0: ("jit(f)", 2, (1,)), 1: ("jit(g)", None, (0,))}, 5))
    nothing was launched, the cluster is clean
      the ranks wait for each other in cell 5
      rank 0   jit(f)   line 2   waits for rank 1
      rank 1   jit(g)   waits for rank 0
      Ranks that share more than one mesh must use the meshes in the same order.
    """
    lines = [_INTACT, f"  the ranks wait for each other in cell {seq}"]
    for rank, (name, line, others) in sorted(waits.items()):
        where = f"   line {line}" if line else ""
        lines.append(f"  rank {rank}   {name}{where}   waits for {say_ranks(others)}")
    return "\n".join([*lines, "  Ranks that share more than one mesh must use the meshes in the same order."])


def _cure(source: str, lines: Sequence[int]) -> str:
    """The way out where the cell's own text shows what is wrong."""
    try:
        tree = ast.parse(_MAGIC_LINE.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # A cell that only IPython can read: there is nothing to say beyond the lines.
        return ""
    for line in lines:
        if (condition := _rank_condition(tree, line)) is not None:
            return f"  The call stands under `if {condition}`. Let every rank compute, and one print."
    return ""


def _rank_condition(tree: ast.AST, line: int) -> str | None:
    """The innermost condition around a line that asks which rank this is."""
    found = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.While | ast.IfExp):
            continue
        test = ast.unparse(node.test)
        branches = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [*node.body, *node.orelse]
        inside = any(part.lineno <= line <= (part.end_lineno or part.lineno) for part in branches)
        if inside and _RANK.search(test):
            found = test
    return found
