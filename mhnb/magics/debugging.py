"""The debugger on the ranks, from a notebook: `%mhjax debug` and breakpoints.

What happens at the prompts is in `cluster/debugging.py`; where a cell stops is checked in `core/cell_request.py`.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from mhnb.commands.command import Command
from mhnb.core.cell_request import parse_breakpoints
from mhnb.core.debugging import HELP_TEXT, DebugRequest
from mhnb.core.messages import Breakpoint
from mhnb.core.output.results import CellResult, RankResult
from mhnb.core.ranks import describe_ranks, format_ranks, parse_ranks
from mhnb.errors import InvalidRequest
from mhnb.magics.session import Session, cannot_type_error, check_result, locations_from_cluster
from mhnb.view.live.input_box import InputBox
from mhnb.view.live.screen import detect_screen
from mhnb.view.live.view import CellView

if TYPE_CHECKING:
    from mhnb.cluster.cluster import Cluster


# -- `%mhjax debug`


def _debug(session: Session, args: argparse.Namespace) -> None:
    debug_last_failure(session, args.ranks)


def debug_last_failure(session: Session, ranks: str | None = None) -> None:
    """Open the debugger where the last failed cell raised on its ranks.

    Args:
        session: of the notebook.
        ranks: as typed; None for the first rank that raised.

    Raises:
        UsageError: no line can be typed here.
        InvalidRequest: no cell has failed, or it did not fail on these ranks.
        NotStarted: no cluster is running.
        ClusterError: the cluster takes no cell, not even this one.
    """
    if not session.can_type():
        raise cannot_type_error("%mhjax debug")
    cluster = session.wait_for_cluster()
    chosen = _choose_ranks(_find_failure(session, cluster), ranks, cluster.process_count)
    result = cluster.run(
        "%debug",
        ranks=chosen,
        guard="lockstep",
        debug=DebugRequest(is_post_mortem=True),
        console=InputBox(detect_screen()),
    )
    # The prompts have shown what the user asked for. A report is for ranks that could not be inspected, or that say why.
    is_seen = not any(rank.outputs for rank in result)
    with CellView(quiet=is_seen, locations=locations_from_cluster(cluster, os.environ)) as view:
        view.finish(result)
    check_result(result)


def _find_failure(session: Session, cluster: Cluster) -> CellResult:
    """Return the last cell that failed on the ranks of a cluster.

    Raises:
        InvalidRequest: none has.
    """
    if (result := session.failures.get(cluster)) is None:
        raise InvalidRequest(
            "debug: no cell of this notebook has failed on these ranks since they were started, so there is nothing to inspect"
        )
    return result


def _choose_ranks(result: CellResult, spec: str | None, process_count: int) -> tuple[int, ...]:
    """Return the ranks that the user names, or the first that raised.

    By default, a rank that was only stopped because another raised is not inspected.

    Raises:
        InvalidRequest: a rank does not exist, or did not fail.

    >>> _choose_ranks(CellResult(1, "1 / 0", (RankResult(0, "ok"), RankResult(1, "error")), 0.1), None, 2)
    (1,)
    """
    failed = [rank.rank for rank in result.failed]
    if spec is None:
        # Of ranks that failed in the same way the lowest: it is chance which of them was the first.
        cause = _describe_cause(result.failed[0])
        return (min(rank.rank for rank in result.failed if _describe_cause(rank) == cause),)
    chosen = parse_ranks(spec, process_count, argument="debug")
    if missing := [rank for rank in chosen if rank not in failed]:
        raise InvalidRequest(
            f"debug {spec}: {result.name} did not fail on {describe_ranks(missing)}, only on {describe_ranks(failed)}"
            f"\n  Fix: %mhjax debug {format_ranks(failed)}"
        )
    return chosen


def _describe_cause(rank: RankResult) -> tuple[str, int | None]:
    return ("", None) if rank.error is None else (rank.error.ename, rank.error.line)


def _debug_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ranks", nargs="?", metavar="RANKS", help="ranks that failed, such as 0,2-3 (default: the first that raised)"
    )


# -- `%mhjax break`, the older form of `%%mhjax --break`


def _break(session: Session, args: argparse.Namespace) -> None:
    if args.clear:
        count = len(session.breakpoints)
        session.breakpoints = []
        print(f"mhjax · break · {f'{count} cleared' if count else 'nothing to clear'}")
    elif args.where is None:
        print(_list_breakpoints(session.breakpoints))
    else:
        added = parse_breakpoints(args.where)
        if not session.can_type():
            raise cannot_type_error("%mhjax break")
        lines = [each.line for each in added]
        kept = [each for each in session.breakpoints if each.line not in lines]
        session.breakpoints = sorted([*kept, *added], key=lambda each: each.line)
        print(_list_breakpoints(session.breakpoints))


def _list_breakpoints(breakpoints: list[Breakpoint]) -> str:
    if not breakpoints:
        return "mhjax · break · the next %%mhjax cell has no breakpoint"
    where = ", ".join(f"{each.line} if {each.condition}" if each.condition else str(each.line) for each in breakpoints)
    return f"mhjax · break · the next %%mhjax cell stops at line {where}"


def _break_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "where",
        nargs="?",
        metavar="LINE [if CONDITION]",
        help="line of the next cell, or several, such as 4, 9; the %%%%mhjax line is line 1. CONDITION is a Python expression, "
        "in which rank is the number of the rank (default: list the breakpoints)",
    )
    parser.add_argument("--clear", action="store_true", help="remove all breakpoints")


_AT_THE_PROMPT = f"""\
breakpoint() in a cell, %%mhjax --debug and %%mhjax --break LINE open the same
debugger while the cell runs.
At its prompt, the commands are those of Python's pdb: n, s, c, up, down, w, l,
p NAME, q and others.
{HELP_TEXT.strip()}"""

COMMANDS = (
    Command(
        "debug",
        _debug,
        "Open the debugger where the last failed cell raised.",
        "look",
        _debug_flags,
        "[RANKS]",
        details=_AT_THE_PROMPT,
    ),
    Command(
        "break",
        _break,
        "Stop the next cell in the debugger, at a line.",
        "look",
        _break_flags,
        splits="raw",
        is_hidden=True,
    ),
)
"""The commands of this module."""
