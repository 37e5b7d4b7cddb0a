"""Agreement of the ranks before a launch: proposals, decisions, messages, JSON encoding.

Every participant decides from the same facts whether to launch, to stop, or to report how they differ, so all of them decide the same.

A rank of another host sends its proposal to the host of the shared board and waits for the decision. It may withdraw the proposal,
and reports when its cell has ended. Each message is one frame of JSON; transport and signing are handled elsewhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from mhnb.core.guard.launches import MAX_GROUPS, REPLAY_COMMAND, LaunchDifference, LaunchGroup, format_difference
from mhnb.core.guard.programs import CALLBACK_PREFIX, MAX_PACKED_CHARS
from mhnb.core.guard.provenance import find_conflict, join_uncompared_blocks
from mhnb.core.guard.threads import MAIN_THREAD, UNKNOWN_THREAD, format_thread
from mhnb.core.ranks import describe_ranks, format_ranks, pluralize, split_list
from mhnb.core.typed_json import MessageCodec
from mhnb.errors import UnknownMessage
from mhnb.types import Frame, Outcome

Ending: TypeAlias = Outcome | Literal["left"]

ENDINGS: tuple[Ending, ...] = ("ok", "error", "interrupted", "skipped", "died", "left")
"""How a cell ended on a rank; the board stores the index in this tuple. `left`: the rank refused a launch because of a collective
that it had abandoned before.
"""

WITHDRAW_REASONS = ("stands", "interrupted", "ring", "cell ended", "lost")
"""What happened to a posted proposal; the board stores the index in this tuple."""

MAX_LINES, LINE_LIMIT = 3, 1 << 21
"""Most lines that a message names for a launch (the innermost and two that called it), and the number that each is below."""

_Hash: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Fits into a word of the board. An invalid number of one rank would show up in another rank's message."""
_Number: TypeAlias = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
_CellNumber: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 32)]
_Line: TypeAlias = Annotated[int, Meta(ge=1, lt=LINE_LIMIT)]
_Rank: TypeAlias = Annotated[int, Meta(ge=0)]

_ENDING_TEXTS: dict[Ending, str] = {
    "error": "raised an error before reaching it",
    "interrupted": "was interrupted before reaching it",
    "skipped": "does not run this cell (--ranks)",
    "died": "was lost before reaching it: it died or its connection broke",
    "left": "refused it",
}
_NOT_LAUNCHED = "nothing was launched"
_NOT_LAUNCHED_CLEAN = f"{_NOT_LAUNCHED}, the cluster is clean"
_DEADLOCK = "the ranks are waiting for each other"
_PROVENANCE_HINT = (
    "  All ranks run the same program, but on arrays that were computed differently (see below the cell).\n"
    "  Compute the array the same way on every rank."
    " If it should differ, create it on every rank in a %%mhjax --guard off cell."
)
_THREAD_HINT = (
    "  Several threads or tasks launch programs, and their order differs between the ranks.\n"
    "  Launch from one thread, or make the threads wait for each other in a fixed order."
)


@dataclass(frozen=True, slots=True)
class MismatchDetails:
    """What a mismatch message names in addition to the programs."""

    differences: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """How each of several programs with one name differs from the others, by fingerprint."""
    threads: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Labels of threads, by kind."""


_NO_DETAILS = MismatchDetails()
_MAGIC_LINE = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)
_RANK_EXPRESSION = re.compile(r"process_index|process_id|\b(?:my_?)?rank\b")
"""Matches an expression that depends on which rank evaluates it."""


class Vote(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A participant's proposal, or its cell's end, as a decision reads it."""

    rank: int
    fingerprint: int | None = None
    """None if its cell ended without the launch."""
    lines: tuple[int, ...] = ()
    """Lines of the cell: the innermost, and those that called it."""
    is_stopped: bool = False
    """Whether the rank had been asked to stop when it posted, or was stopped while it waited."""
    in_interrupt_handler: bool = False
    """Whether the rank was stopped together with others before, and makes this launch to handle that interrupt."""
    ending: Ending = "ok"
    """How its cell ended; meaningful only if the rank did not post."""
    provenance: int = 0
    """Provenance hash of the arrays that it would launch on."""
    thread: int = UNKNOWN_THREAD
    """Number of the thread or task of the cell that would launch it."""


def remove_cluster_state(text: str) -> str:
    """Remove the cluster state from the text of a mismatch.

    A rank knows its own launch, but not what else the cell did.

    >>> remove_cluster_state("nothing was launched, the cluster is clean")
    'nothing was launched'
    """
    return text.replace(_NOT_LAUNCHED_CLEAN, _NOT_LAUNCHED)


def decide(votes: Sequence[Vote], *, interrupted: bool) -> str:
    """Decide what all participants do: `launch`, `interrupt`, `mismatch`, or `again`.

    After `again` each participant proposes once more, with the provenance of only those arrays that every rank can compare.

    Args:
        votes: one per participant.
        interrupted: whether the cell was asked to stop.

    >>> decide([Vote(0, 7), Vote(1, 7)], interrupted=False)
    'launch'
    >>> decide([Vote(0, 7), Vote(1, 7, is_stopped=True)], interrupted=True)
    'interrupt'
    >>> decide([Vote(0, 7), Vote(1)], interrupted=False)
    'mismatch'
    """
    if any(stand.is_stopped for stand in votes):
        return "interrupt"
    if len({stand.in_interrupt_handler for stand in votes if stand.fingerprint is not None}) > 1:
        # One rank has handled the interrupt and another has not: the same program on both would mix values of two points
        # of the cell.
        return "interrupt"
    if interrupted and any(stand.fingerprint is None and stand.ending == "interrupted" for stand in votes):
        return "interrupt"
    if not votes_match(votes):
        return "mismatch"
    return "again" if join_uncompared_blocks(stand.provenance for stand in votes) else "launch"


def votes_match(votes: Sequence[Vote]) -> bool:
    """Check whether all propose one program, thread, and provenance of arrays.

    >>> votes_match([Vote(0, 7, provenance=5), Vote(1, 7, provenance=5)])
    True
    >>> votes_match([Vote(0, 7, provenance=5), Vote(1, 7)])
    False
    >>> votes_match([Vote(0), Vote(1)])
    False
    """
    proposed = {stand.fingerprint for stand in votes}
    return (
        len(proposed) == 1
        and None not in proposed
        and not _threads_differ(votes)
        and not _find_provenance_conflict(votes)
    )


def _threads_differ(votes: Sequence[Vote]) -> bool:
    """Check whether different known threads of the cell would meet.

    >>> _threads_differ([Vote(0, 7, thread=5), Vote(1, 7, thread=6)]), _threads_differ([Vote(0, 7, thread=5), Vote(1, 7)])
    (True, False)
    """
    return len({stand.thread for stand in votes if stand.thread != UNKNOWN_THREAD}) > 1


def _find_provenance_conflict(votes: Sequence[Vote]) -> list[int]:
    return find_conflict(stand.provenance for stand in sorted(votes, key=lambda stand: stand.rank))


def label_provenance(votes: Sequence[Vote]) -> dict[int, str]:
    """Label provenances by letter if only they differ; otherwise return {}.

    >>> label_provenance([Vote(1, 7), Vote(0, 7, provenance=5), Vote(2, 7)])
    {5: 'A', 0: 'B'}
    >>> label_provenance([Vote(0, 7, provenance=5), Vote(1)])
    {}
    """
    proposed = {stand.fingerprint for stand in votes}
    if (
        len(proposed) > 1
        or None in proposed
        or _threads_differ(votes)
        or not (conflicting := _find_provenance_conflict(votes))
    ):
        return {}
    letters = {origin: chr(ord("A") + n % 26) + str(n // 26 or "") for n, origin in enumerate(conflicting)}
    ordered = sorted(votes, key=lambda stand: stand.rank)
    return {stand.provenance: letters.get(stand.provenance, "not known yet") for stand in ordered}


def format_mismatch(
    votes: Sequence[Vote],
    names: Mapping[int, str],
    *,
    number: int,
    cell_name: str,
    source: str,
    details: MismatchDetails = _NO_DETAILS,
) -> str:
    r"""Format which rank proposes which program; all ranks get equal text.

    Args:
        names: of programs, by fingerprint.
        number: of the launch among those of these participants in the cell, from 1.
        cell_name: the cell's name.
        source: its text.
        details: how programs with one name differ, and the labels of threads.

    >>> print(format_mismatch([Vote(0, 7, (2,)), Vote(1)], {7: "jit(f)"}, number=1, cell_name="cell 4", source="").split("\n", 1)[1])
    launch 1 of cell 4 differs
      rank 0   jit(f)   line 2
      rank 1   finished the cell without reaching it
    """
    letters = label_provenance(votes)
    in_threads = any(vote.thread not in (UNKNOWN_THREAD, MAIN_THREAD) for vote in votes)
    members: dict[tuple[int | None, int, str], list[Vote]] = {}
    for stand in sorted(votes, key=lambda stand: stand.rank):
        reason = _ENDING_TEXTS.get(stand.ending, "") if stand.fingerprint is None else ""
        key = stand.provenance if letters else stand.fingerprint
        members.setdefault((key, stand.thread if in_threads else UNKNOWN_THREAD, reason), []).append(stand)
    threads = details.threads if in_threads else None
    suffixes = {stand.rank: _format_suffix(stand, letters, threads, cell_name) for stand in votes}
    groups = tuple(_build_group(same, names, why, suffixes[same[0].rank]) for (*_, why), same in members.items())
    difference = LaunchDifference(number - 1, groups)
    if any(stand.fingerprint is None and stand.ending == "left" for stand in votes):
        # The reason is in the error of the rank that refused, and the fix below the cell.
        return f"{_NOT_LAUNCHED}\n{format_difference(difference, cell_name, source, verdict='was refused')}"
    text = format_difference(difference, cell_name, source)
    if letters:
        hint = _PROVENANCE_HINT
    elif _threads_differ(votes):
        hint = _THREAD_HINT
    else:
        hint = _find_hint(source, groups, votes, number)
    differences = _format_differences(groups, details.differences)
    return "\n".join([_NOT_LAUNCHED_CLEAN, text, *differences, *([hint] if hint else [])])


_MAX_DIFFERENCES = 4
"""Programs whose first difference an error shows."""


def _format_differences(groups: Sequence[LaunchGroup], differences: Mapping[int, str]) -> list[str]:
    found = [(side, differences.get(int(side.fingerprint, 16), "")) for side in groups if side.fingerprint is not None]
    different = [(side.ranks, difference) for side, difference in found if difference]
    if len(different) < 2:
        return []
    shown, rest = split_list(different, _MAX_DIFFERENCES)
    described = [(describe_ranks(ranks), difference) for ranks, difference in shown]
    width = max(len(who) for who, _ in described)
    # The result of a callback affects the numbers that the program computes.
    has_callback = any(text.startswith(CALLBACK_PREFIX) for _, text in different)
    hint = (
        [
            "  Sort what you list, so that every rank launches the callbacks in one order. If a callback's values belong to its rank,",
            "  pass mhnb.per_rank(callback). If its code should differ, use one function that calls jax.process_index() itself.",
        ]
        if has_callback
        else []
    )
    return [
        "  The programs have the same name and shapes. The first difference is:",
        *(f"    {w:{width}}   {text}" for w, text in described),
        *([f"    {describe_ranks(rank for ranks, _ in rest for rank in ranks)} differ too"] if rest else []),
        *hint,
    ]


def _format_suffix(vote: Vote, letters: Mapping[int, str], threads: Mapping[int, str] | None, cell_name: str) -> str:
    """Return what follows the program's name: the arrays' letter and the thread."""
    arrays = f" of arrays {letters[vote.provenance]}" if letters else ""
    known = threads is not None and vote.thread != UNKNOWN_THREAD
    return f"{arrays} in {format_thread(vote.thread, threads or {}, cell_name)}" if known else arrays


def _build_group(same: Sequence[Vote], names: Mapping[int, str], reason: str, suffix: str) -> LaunchGroup:
    ranks, proposed = tuple(stand.rank for stand in same), same[0].fingerprint
    if proposed is None:
        return LaunchGroup(ranks, None, None, None, reason)
    lines = same[0].lines
    line = lines[0] if lines else None
    return LaunchGroup(ranks, f"{proposed:016x}", names.get(proposed, "a program") + suffix, line, callers=lines[1:])


def format_missing_ranks(name: str, participants: Sequence[int], chosen: Sequence[int]) -> str:
    """Format the message for a launch that needs ranks outside `--ranks`.

    >>> print(format_missing_ranks("jit(f)", (0, 1, 2), (0, 1)))
    nothing was launched, the cluster is clean
      jit(f) needs ranks 0-2, but this cell runs only on ranks 0-1
      Run it without --ranks, or use a mesh of only these ranks' devices.
    """
    return (
        f"{_NOT_LAUNCHED_CLEAN}\n  {name} needs ranks {format_ranks(participants)}, but this cell runs only on "
        f"{describe_ranks(chosen)}\n"
        "  Run it without --ranks, or use a mesh of only these ranks' devices."
    )


def format_too_far_ahead(ranks: Sequence[int]) -> str:
    """Format the message for a rank that withdrew too many launches.

    >>> print(format_too_far_ahead([2]))
    nothing was launched, the cluster is clean
      this rank gave up three launches in a row that rank 2 has not reached
      A loop may catch the interrupt and try again. Let KeyboardInterrupt and OrderMismatch end the loop.
    """
    who = describe_ranks(ranks)
    return (
        f"{_NOT_LAUNCHED_CLEAN}\n  this rank gave up three launches in a row that {who} "
        f"{'have' if len(ranks) > 1 else 'has'} not reached\n"
        "  A loop may catch the interrupt and try again. Let KeyboardInterrupt and OrderMismatch end the loop."
    )


def format_unreadable_board(reason: str) -> str:
    """Format the message for a rank that cannot read others' proposals.

    >>> print(format_unreadable_board("the proposal of rank 1 for launch 3 is not there any more"))
    this rank did not launch, because it cannot read what the others propose: the proposal of rank 1 for launch 3 is not there any more
      The other ranks may have launched.
      Fix: %mhjax restart --replay
    """
    return (
        f"this rank did not launch, because it cannot read what the others propose: {reason}\n"
        f"  The other ranks may have launched.\n  Fix: {REPLAY_COMMAND}"
    )


def format_deadlock(waits: Mapping[int, tuple[str, int | None, Sequence[int]]]) -> str:
    """Format which rank waits for which in a deadlock.

    Args:
        waits: by rank, the program that it proposes, the line of the cell, and the ranks that it waits for.

    >>> print(format_deadlock({0: ("jit(f)", 2, (1,)), 1: ("jit(g)", None, (0,))}))
    nothing was launched, the cluster is clean
      the ranks are waiting for each other
      rank 0   jit(f)   line 2   waits for rank 1
      rank 1   jit(g)   waits for rank 0
      Ranks that share more than one mesh must use the meshes in the same order.
    """
    lines = [_NOT_LAUNCHED_CLEAN, f"  {_DEADLOCK}"]
    ordered = sorted(waits.items())
    shown, rest = split_list(ordered, MAX_GROUPS)
    for rank, (name, line, others) in shown:
        where = f"   line {line}" if line else ""
        lines.append(f"  rank {rank}   {name}{where}   waits for {describe_ranks(others)}")
    if rest:
        lines.append(f"  {describe_ranks(rank for rank, _ in rest)} wait too")
    return "\n".join([*lines, "  Ranks that share more than one mesh must use the meshes in the same order."])


def name_deadlocked_cell(text: str, cell_name: str) -> str:
    """Add the cell's name to a deadlock's text.

    The host of the board formats the text, and does not know the name.

    >>> name_deadlocked_cell(format_deadlock({0: ("jit(f)", 2, (1,))}), "In [7]").splitlines()[1]
    '  the ranks are waiting for each other in In [7]'
    """
    return text.replace(_DEADLOCK, f"{_DEADLOCK} in {cell_name}", 1)


def _find_hint(source: str, groups: Sequence[LaunchGroup], votes: Sequence[Vote], number: int) -> str:
    """Return a hint if the cell's text shows the fault, otherwise empty.

    Args:
        number: of the launch, from 1.
    """
    try:
        tree = ast.parse(_MAGIC_LINE.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Only IPython can parse this cell: there is no hint beyond the lines.
        return ""
    for line in [line for side in groups for line in side.lines]:
        if (branch := _find_rank_branch(tree, line)) is not None:
            step = (
                "Compute on every rank; put only the print inside."
                if _has_print(branch)
                else "Move the call out of the `if`, so that every rank makes it."
            )
            return f"  The call is inside `if {ast.unparse(branch.test)}:`. {step}"
    launching = [side for side in groups if side.fingerprint is not None]
    missing = [vote for vote in votes if vote.fingerprint is None]
    if not missing:
        return _order_hint(tree, launching)
    if any(vote.ending != "ok" for vote in missing):
        return ""
    around = next((found for side in launching if (found := _find_loop(tree, side)) is not None), None)
    if around is None:
        return ""
    loop, branch = around
    done = f"after {number - 1} launch{'' if number == 2 else 'es'}" if number > 1 else "before the first launch"
    finished = f"{describe_ranks(vote.rank for vote in missing)} finished {done}"
    if branch is not None:
        return (
            f"  The call is inside `if {ast.unparse(branch.test)}:` in the loop on line {loop.lineno}, and {finished}.\n"
            "  Decide it by a value that all ranks share, and run the same number of steps on every rank."
        )
    return (
        f"  The call is in the loop on line {loop.lineno}, and {finished}.\n"
        "  Run the same number of steps on every rank: compute it from a value that all ranks share, or drop the last, partial batch."
    )


_MAX_HINT_LINES = 3
"""Lines of the cell that a hint lists; if there are more, their number follows."""


def _order_hint(tree: ast.AST, groups: Sequence[LaunchGroup]) -> str:
    """Return the hint for ranks that are about to launch different programs."""
    places = {side.lines for side in groups}
    if () in places or len({side.name for side in groups}) < len(groups):
        return ""
    if len(places) == 1 and (around := _find_loop(tree, groups[0])) is not None:
        return (
            f"  The loop on line {around[0].lineno} may run in a different order on some ranks.\n"
            "  Sort what it loops over (such as a set or os.listdir), and let nothing in it depend on the rank."
        )
    lines = sorted({side.lines[0] for side in groups})
    if len(lines) == 1:
        return f"  Call the same function with the same shapes on line {lines[0]} on every rank."
    if (branch := _find_branches(tree, groups)) is not None:
        return (
            f"  The ranks took different branches of `if {ast.unparse(branch.test)}:` on line {branch.lineno}."
            " Decide it by a value that all ranks share."
        )
    shown, rest = split_list(lines, _MAX_HINT_LINES)
    *others, last = [*map(str, shown), *([pluralize(len(rest), "more line")] if rest else [])]
    return f"  Make the calls on lines {', '.join(others)} and {last} on every rank, in the same order."


def _find_branches(tree: ast.AST, groups: Sequence[LaunchGroup]) -> ast.If | None:
    """Return the outermost `if` whose branches contain different calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and all(
            any(_contains(part, line) for side in groups for line in side.lines for part in branch)
            for branch in (node.body, node.orelse)
        ):
            return node
    return None


_Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While | _Comprehension


def _find_loop(tree: ast.AST, side: LaunchGroup) -> tuple[_Loop, ast.If | ast.IfExp | None] | None:
    """Return the innermost loop around a launch, and an `if` between them."""
    for line in side.lines:
        found: tuple[_Loop, ast.If | ast.IfExp | None] | None = None
        for node in ast.walk(tree):
            # `ast.walk` visits outer nodes first.
            if isinstance(node, _Loop) and _is_repeated(node, tree, line, side.name or ""):
                found = node, None
            elif isinstance(node, ast.If | ast.IfExp) and found is not None and _is_in_branch(node, line):
                found = found[0], node
        if found is not None:
            return found
    return None


def _is_repeated(loop: _Loop, tree: ast.AST, line: int, name: str) -> bool:
    """Check whether a loop repeats the call on a line.

    A line may have calls inside and outside a comprehension. The call is the one with the program's name; without such a call,
    no call of the line may be outside.
    """
    if not any(_contains(part, line) for part in _repeated_parts(loop)):
        return False
    if isinstance(loop, ast.For | ast.AsyncFor | ast.While):
        return True
    calls = _find_calls(tree, line)
    function = name.partition("(")[2].partition(")")[0]
    named = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == function]
    inside = {id(node) for part in _repeated_parts(loop) for node in ast.walk(part)}
    first_iterator = {id(node) for node in ast.walk(loop.generators[0].iter)}
    possible = named or [call for call in calls if id(call) not in first_iterator]
    return bool(possible or not calls) and all(id(call) in inside for call in possible)


def _repeated_parts(loop: _Loop) -> list[ast.stmt | ast.expr]:
    """Return the parts of a loop that run once per step."""
    match loop:
        case ast.For() | ast.AsyncFor():
            return [*loop.body]
        case ast.While():
            return [loop.test, *loop.body]
        case ast.DictComp():
            values = [loop.key, loop.value]
        case _:
            values = [loop.elt]
    first, *others = loop.generators
    return [*values, *first.ifs, *(part for each in others for part in (each.iter, *each.ifs))]


def _find_calls(tree: ast.AST, line: int) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _contains(node, line)]


def _contains(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _find_rank_branch(tree: ast.AST, line: int) -> ast.If | ast.IfExp | None:
    """Return the innermost `if` around a line that depends on the rank."""
    found = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.IfExp):
            continue
        test = ast.unparse(node.test)
        if _is_in_branch(node, line) and _RANK_EXPRESSION.search(test):
            found = node
    return found


def _is_in_branch(node: ast.If | ast.IfExp, line: int) -> bool:
    branches: list[ast.stmt | ast.expr] = (
        [node.body, node.orelse] if isinstance(node, ast.IfExp) else [*node.body, *node.orelse]
    )
    # `f if rank else g` only chooses: the call is outside.
    return any(_contains(part, line) and not _is_plain(part) for part in branches)


def _has_print(branch: ast.AST) -> bool:
    """Check whether code calls `print`."""
    calls = [node.func for node in ast.walk(branch) if isinstance(node, ast.Call)]
    return any(isinstance(func, ast.Name) and func.id == "print" for func in calls)


def _is_plain(node: ast.AST) -> bool:
    """Check whether an expression only lists names and constants."""
    plain = (ast.Name, ast.Constant, ast.List, ast.Tuple, ast.expr_context)
    return all(isinstance(part, plain) for part in ast.walk(node))


# -- messages to and from the agreement server


DecisionKind: TypeAlias = Literal["launch", "again", "interrupt", "mismatch", "ring", "cell ended", "behind", "refused"]


class LaunchProposal(NamedTuple):
    """A rank's proposal: the launch that it is about to make."""

    seq: _CellNumber
    """Number of the cell."""
    fingerprint: _Number
    """Odd, less than 2**63."""
    name: str
    participants: tuple[_Rank, ...]
    lines: Annotated[tuple[_Line, ...], Meta(max_length=MAX_LINES)]
    """1-based lines of the cell: the innermost, and those that called it; empty if the launch is outside the cell's own text."""
    in_interrupt_handler: bool = False
    """The ranks were stopped together, and the cell's code makes this launch to handle that: it is not stopped again."""
    provenance: _Hash = 0
    """Provenance hash of the arrays that it launches on, less than 2**63."""
    thread: _Hash = UNKNOWN_THREAD
    """Number of the thread or task of the cell that launches it; see `core/guard/threads.py`."""
    thread_label: str = ""
    """Label of the thread's kind, with the cell that started it."""

    @property
    def line(self) -> int | None:
        """The innermost of the lines, or None."""
        return self.lines[0] if self.lines else None


class Decision(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The decision on a proposal; ranks launch it only after `launch`."""

    kind: DecisionKind
    is_agreed: bool = False
    """Of an interrupt: whether every participant had reached this launch, and proposed the same."""
    launch_number: int = 0
    """Of a mismatch: number of the launch among those of these participants in the cell, from 1."""
    votes: tuple[Vote, ...] = ()
    names: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Of a mismatch: the programs' names, by fingerprint."""
    differences: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Of a mismatch of programs with one name: how each differs from the others, by fingerprint."""
    threads: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Of a mismatch: the labels of threads, by kind."""
    text: str = ""
    """Message that was formatted on the host of the board, for the kinds that need one."""


LAUNCH_DECISION = Decision("launch")


class _RankMessage(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message of a rank, as an array of kind and fields."""


class Propose(_RankMessage, frozen=True, tag="asked"):
    """A rank proposes a launch, numbered and one at a time."""

    number: _Number
    proposal: LaunchProposal


class Withdraw(_RankMessage, frozen=True, tag="withdrawn"):
    """A rank tries to withdraw a proposal; the decision reports the result."""

    number: int
    reason: Annotated[int, Meta(ge=1, lt=len(WITHDRAW_REASONS))]
    """Index of the reason in WITHDRAW_REASONS."""


class CellFinished(_RankMessage, frozen=True, tag="over"):
    """A cell ended on a rank, which proposes nothing more in it."""

    seq: _CellNumber
    ending: Annotated[int, Meta(ge=0, lt=len(ENDINGS))]
    """Index in ENDINGS of how the cell ended."""


class DescribeProgram(_RankMessage, frozen=True, tag="described"):
    """Outline of a compiled program, sent before the rank proposes its launch."""

    fingerprint: _Number
    outline: Annotated[str, Meta(max_length=MAX_PACKED_CHARS)]
    """From `pack_outline`."""


RankMessage: TypeAlias = Propose | Withdraw | CellFinished | DescribeProgram

_RANK_MESSAGES: MessageCodec[RankMessage] = MessageCodec(RankMessage)
_DECISIONS: MessageCodec[tuple[int, Decision]] = MessageCodec(tuple[int, Decision])


def encode_from_rank(message: RankMessage) -> list[bytes]:
    """Encode a rank's message.

    >>> encode_from_rank(CellFinished(7, 0))
    [b'["over",7,0]']
    """
    return [_RANK_MESSAGES.encode(message)]


def decode_from_rank(frames: Sequence[Frame], rank: int, process_count: int) -> RankMessage:
    """Decode and check a rank's message.

    Raises:
        UnknownMessage: the message is not valid.

    >>> decode_from_rank([b'["withdrawn", 3, 1]'], 1, 2)
    Withdraw(number=3, reason=1)
    """
    try:
        message = _RANK_MESSAGES.decode(frames[0])
        if isinstance(message, Propose):
            _check_proposal(message.proposal, rank, process_count)
    except (IndexError, ValueError) as error:
        raise UnknownMessage(
            f"rank {rank} sent an invalid message about a launch: {_quote(frames)} ({error!s:.200})"
        ) from error
    return message


def _check_proposal(proposal: LaunchProposal, rank: int, process_count: int) -> None:
    """Check what no type says.

    Raises:
        ValueError: the rank is not among the participants, one of them does not exist, or the fingerprint is even.
    """
    if rank not in proposal.participants or max(proposal.participants) >= process_count:
        raise ValueError(
            f"rank {rank} of {process_count} is not one of these participants, or one of them does not exist"
        )
    if proposal.fingerprint % 2 == 0:
        raise ValueError("the fingerprint is even")


def encode_decision(number: int, decision: Decision) -> list[bytes]:
    """Encode the decision on a rank's proposal.

    >>> encode_decision(3, LAUNCH_DECISION)
    [b'[3,["launch",false,0,[],{},{},{},""]]']
    """
    return [_DECISIONS.encode((number, decision))]


def decode_decision(frames: Sequence[Frame]) -> tuple[int, Decision]:
    """Decode the number of a proposal and the decision on it.

    Raises:
        UnknownMessage: it is not a decision.

    >>> decode_decision(encode_decision(3, LAUNCH_DECISION)) == (3, LAUNCH_DECISION)
    True
    """
    try:
        return _DECISIONS.decode(frames[0])
    except (IndexError, ValueError) as error:
        raise UnknownMessage(
            f"internal error: unexpected reply from the launch-agreement service: {_quote(frames)} ({error!s:.200})"
        ) from error


def _quote(frames: Sequence[Frame]) -> str:
    return repr(bytes(frames[0][:200])) if frames else "nothing"
