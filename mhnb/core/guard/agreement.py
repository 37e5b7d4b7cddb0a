"""What the participants of a launch make of what each of them posted: launch, stop, or say where they differ.

Every participant decides from the same facts, so all of them decide the same.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from mhnb.core.guard.origins import find_conflict
from mhnb.core.guard.outlines import CALLBACK
from mhnb.core.guard.rules import LaunchDifference, LaunchSide, format_difference
from mhnb.core.ranks import format_ranks, say_ranks
from mhnb.values import Outcome

__all__ = [
    "ENDINGS",
    "Ending",
    "MARKS",
    "Stand",
    "format_behind",
    "format_mismatch",
    "format_outside",
    "format_ring",
    "judge_launch",
    "letter_origins",
    "want_the_same",
]

Ending: TypeAlias = Outcome | Literal["left"]

ENDINGS: tuple[Ending, ...] = ("ok", "error", "interrupted", "skipped", "died", "left")
"""How a cell ended on a rank; its place here is what goes on the board. `left`: it refused a launch for what it had left before."""

MARKS = ("stands", "interrupted", "ring", "cell ended", "lost")
"""What became of a post; its place here is what goes on the board."""

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
    "  The program is the same, the arrays are not: a rank ran something alone before it, or chose an array by its rank.\n"
    "  Make them by the same steps on every rank; what is to differ on purpose is made in a cell with --guard off."
)
_AFTER_LEFT = "  Wait until that one ends, if it does; else %mhjax restart --replay"


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one participant stands at a launch."""

    rank: int
    fingerprint: int | None = None
    """None: its cell ended without the launch."""
    line: int | None = None
    stopped: bool = False
    """It had been asked to stop when it posted, or was stopped while it waited."""
    handles: bool = False
    """It had stopped together with others before, and wants this to handle that."""
    ending: Ending = "ok"
    """How its cell ended; of meaning only where it did not post."""
    origin: int = 0
    """Where the arrays come from that it would launch on, as a hash; 0 where that is not known of any."""


def judge_launch(stands: Sequence[Stand], *, interrupted: bool) -> str:
    """Say what all participants do: `launch`, `interrupt` or `mismatch`.

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
    return "launch" if want_the_same(stands) else "mismatch"


def want_the_same(stands: Sequence[Stand]) -> bool:
    """Whether all want one program, on arrays that came about alike.

    >>> want_the_same([Stand(0, 7, origin=5), Stand(1, 7, origin=5)]), want_the_same([Stand(0, 7, origin=5), Stand(1, 7)])
    (True, False)
    """
    return len({stand.fingerprint for stand in stands}) == 1 and not _conflict(stands)


def _conflict(stands: Sequence[Stand]) -> list[int]:
    return find_conflict(stand.origin for stand in sorted(stands, key=lambda stand: stand.rank))


def letter_origins(stands: Sequence[Stand]) -> dict[int, str]:
    """Name the arrays of each side by a letter where all want the same program, but not of the same arrays; else none.

    >>> letter_origins([Stand(1, 7), Stand(0, 7, origin=5), Stand(2, 7)]), letter_origins([Stand(0, 7, origin=5), Stand(1)])
    ({5: 'A', 0: 'B'}, {})
    """
    wanted = {stand.fingerprint for stand in stands}
    if len(wanted) > 1 or None in wanted or not (origins := _conflict(stands)):
        return {}
    letters = {origin: chr(ord("A") + n % 26) + str(n // 26 or "") for n, origin in enumerate(origins)}
    ordered = sorted(stands, key=lambda stand: stand.rank)
    return {stand.origin: letters.get(stand.origin, "of --guard off") for stand in ordered}


def format_mismatch(
    stands: Sequence[Stand],
    names: Mapping[int, str],
    *,
    number: int,
    seq: int,
    source: str,
    differences: Mapping[int, str] = MappingProxyType({}),
) -> str:
    r"""Say who wants what, the same words on every rank.

    Args:
        names: of programs, by fingerprint.
        number: of the launch among those of these participants in the cell, from 1.
        source: the cell's text.
        differences: what programs of one name differ in, by fingerprint.

    >>> print(format_mismatch([Stand(0, 7, 2), Stand(1)], {7: "jit(f)"}, number=1, seq=4, source="").split("\n", 1)[1])
    launch 1 of cell 4 differs
      rank 0   jit(f)   line 2
      rank 1   ended the cell without it
    """
    letters = letter_origins(stands)
    members: dict[tuple[int | None, str], list[Stand]] = {}
    for stand in sorted(stands, key=lambda stand: stand.rank):
        why = _WORDS.get(stand.ending, "") if stand.fingerprint is None else ""
        members.setdefault((stand.origin if letters else stand.fingerprint, why), []).append(stand)
    sides = tuple(_side(same, names, why, letters) for (_, why), same in members.items())
    told = format_difference(LaunchDifference(number - 1, sides), seq, source)
    if any(stand.fingerprint is None and stand.ending == "left" for stand in stands):
        return f"{_NOTHING}\n{told}\n{_AFTER_LEFT}"
    cure = _SAME_STEPS if letters else _cure(source, [side.line for side in sides if side.line is not None])
    return "\n".join([_INTACT, told, *_format_differences(sides, differences), *([cure] if cure else [])])


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


def _side(same: Sequence[Stand], names: Mapping[int, str], why: str, letters: Mapping[int, str]) -> LaunchSide:
    ranks, wanted = tuple(stand.rank for stand in same), same[0].fingerprint
    if wanted is None:
        return LaunchSide(ranks, None, None, None, why)
    of = f" of arrays {letters[same[0].origin]}" if letters else ""
    return LaunchSide(ranks, f"{wanted:016x}", names.get(wanted, "a program") + of, same[0].line)


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
    for line in lines:
        if (condition := _rank_condition(source, line)) is not None:
            return f"  The call stands under `if {condition}`. Let every rank compute, and one print."
    return ""


def _rank_condition(source: str, line: int) -> str | None:
    """The innermost condition around a line that asks which rank this is."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        # A cell with magics: there is nothing to say beyond the lines.
        return None
    found = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.While):
            continue
        test = ast.unparse(node.test)
        inside = any(part.lineno <= line <= (part.end_lineno or part.lineno) for part in (*node.body, *node.orelse))
        if inside and ("process_index" in test or "process_id" in test):
            found = test
    return found
