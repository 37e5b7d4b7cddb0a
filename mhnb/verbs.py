"""The verbs of `%mhjax VERB`: each a parser and a short function over the cluster."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb import replaying, starting, verbs_collectives, verbs_doctor, verbs_export, verbs_hosts, verbs_layout
from mhnb.berth import describe_others
from mhnb.boards import gather_status, gather_summary, gather_vars
from mhnb.callers import uses_result
from mhnb.core.expression import split_expression, unquote
from mhnb.core.numerals import whole_number
from mhnb.core.ranks import parse_ranks, say_count, say_ranks
from mhnb.core.replay_report import ReplayStep, format_report, format_step
from mhnb.errors import InvalidRequest, MhnbError, NotStarted, ShardingError
from mhnb.exchange.asks import check_names
from mhnb.launch.launchers import restart_note
from mhnb.notebook import Notebook
from mhnb.rank.jaxseams import backend_is_initialized
from mhnb.roll import describe_place
from mhnb.verbs_outputs import panel, panel_flags
from mhnb.verbs_start import add_start_flags, shown, start_verb
from mhnb.view import board
from mhnb.view.where import format_where_text
from mhnb.view.words import format_seconds

if TYPE_CHECKING:
    from mhnb.cluster import Cluster

__all__ = ["VERBS", "run_verb", "stop_all", "verb_parser"]

Verb: TypeAlias = Callable[[Notebook, argparse.Namespace], Any]


def _warnings() -> list[str]:
    """Say when this notebook has a JAX backend of its own: its devices are not the ranks', and a GPU it holds is not theirs."""
    if backend_is_initialized():
        return [
            "this notebook's own process has initialised JAX too; what it computes there has nothing to do with the ranks"
        ]
    return []


def _status(notebook: Notebook, args: argparse.Namespace) -> None:
    board.show_status(gather_status(starting.latest(), _warnings()))


def _interrupt(notebook: Notebook, args: argparse.Namespace) -> None:
    cluster = starting.current()
    is_running = cluster.state == "running"
    cluster.interrupt()
    print(
        "mhjax · the cell that runs is being interrupted"
        if is_running
        else "mhjax · no cell runs: nothing to interrupt"
    )


def _where(notebook: Notebook, args: argparse.Namespace) -> None:
    cluster = starting.current() if args.name is None else starting.by_name(args.name)
    card = cluster.where()
    print("mhjax · no cell runs" if card is None else format_where_text(card, name=cluster.name))


def _accept(notebook: Notebook, args: argparse.Namespace) -> None:
    cluster = starting.current()
    was = cluster.state
    cluster.accept()
    print(
        f"mhjax · {was} accepted, {cluster.state} now" if was != cluster.state else f"mhjax · {was}: nothing to accept"
    )


def _restart(notebook: Notebook, args: argparse.Namespace) -> None:
    cluster = starting.latest()
    replaying.check_replay(cluster, args.to, replay=args.replay)
    if note := restart_note(cluster.shape, keep=cluster.options.keep):
        print(f"mhjax · {note}")
    held = not args.replay and starting.can_come_back(cluster)
    with board.StartBoard() as progress:
        fresh = starting.restart(cluster, shown(progress))
        summary = gather_summary(fresh)
        progress.finish(replace(summary, notes=(*summary.notes, starting.FRESH)) if held else summary)
    if args.replay:
        _replay(fresh, args.to)


def _replay(cluster: Cluster, to: int | None) -> None:
    line = board.ProgressLine()

    def show(step: ReplayStep) -> None:
        line.update(format_step(step), step.done / len(step.plan.steps))

    try:
        report = replaying.replay(cluster, to, show)
    except BaseException as error:
        # The error says the rest; the line must not look as if it still moved.
        line.finish("mhjax · replay stopped" if isinstance(error, MhnbError) else "mhjax · replay broken off")
        raise
    line.finish(format_report(report, format_seconds(report.wall_s)))


def _restart_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("--replay", action="store_true", help="run again every cell that ended clean, and push again")
    parser.add_argument(
        "--to", type=whole_number, metavar="SEQ", help="with --replay: stop after the cell of this number"
    )


def _stop(notebook: Notebook, args: argparse.Namespace) -> None:
    if args.name is None and not starting.all_clusters():
        # As a second `%mhjax start` is none, this is no error: who runs all cells again ends here.
        others = "; %mhjax list shows those of others, or that were left" if describe_others(os.environ) else ""
        print(f"mhjax · no cluster of this notebook runs; nothing to stop{others}")
        return
    cluster = starting.current() if args.name is None else starting.by_name(args.name)
    if cluster.state == "stopped":
        print(f"mhjax · {cluster.name}: {cluster.reason or 'stopped already'}")
        return
    cluster.stop()
    print(f"mhjax · {cluster.name}: {say_count(cluster.process_count, 'rank')} stopped")


def _stop_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the cluster's name; else the one in use")


def _attach(notebook: Notebook, args: argparse.Namespace) -> None:
    with board.StartBoard() as progress:
        cluster = starting.attach(args.name, shown(progress))
        if cluster.state == "dead":
            # Why has been told, with the way out.
            progress.break_off("found it dead")
            return
        progress.finish(gather_summary(cluster))
    if cluster.state != "clean":
        print(f"mhjax · {cluster.name} is {cluster.state}: {cluster.reason}")


def _list(notebook: Notebook, args: argparse.Namespace) -> None:
    mine = starting.all_clusters()
    for cluster in mine:
        where = describe_place(cluster.shape, cluster.ranks)
        here = "  cells go here" if len(mine) > 1 and cluster is starting.current() else ""
        print(f"{cluster.name}  {where}  {cluster.state}  generation {cluster.generation}{here}")
    others = describe_others(os.environ)
    print(*others, sep="\n", end="\n" if others else "")
    if not mine and not others:
        print("mhjax · no cluster; %mhjax start starts one")


def _auto(notebook: Notebook, args: argparse.Namespace) -> None:
    if args.switch == "on":
        starting.current()
    notebook.auto = notebook.auto if args.switch is None else args.switch == "on"
    where = "plain cells go to the ranks; %%local keeps one here" if notebook.auto else "plain cells stay here"
    print(f"mhjax auto {'on' if notebook.auto else 'off'} · {where}")


def _auto_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument(
        "switch", nargs="?", choices=("on", "off"), help="whether plain cells go to the ranks too; else it is told"
    )


def _pull(notebook: Notebook, args: argparse.Namespace) -> Any:
    cluster = starting.current()
    values = cluster.pull(*args.names, ranks=args.ranks, each=args.each)
    bound = dict(zip(args.names, (values,) if len(args.names) == 1 else values, strict=True))
    notebook.shell.user_ns.update(bound)
    for name, value in bound.items():
        print(f"{name} · {_describe(value)}")
    # For `x = %mhjax pull x`. Where it stands alone, IPython would show it, and keep hundreds of megabytes in Out.
    return values if uses_result(notebook.shell.user_ns) else None


def _describe(value: Any) -> str:
    if all(hasattr(value, name) for name in ("shape", "dtype", "nbytes")):
        return f"{value.dtype}{list(value.shape)}, {value.nbytes} bytes"
    return type(value).__name__


def _pull_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a variable of the ranks")
    parser.add_argument("--ranks", metavar="SPEC", help="take it from these ranks")
    parser.add_argument("--each", action="store_true", help="a list with each rank's own value")


def _push(notebook: Notebook, args: argparse.Namespace) -> None:
    names = check_names(args.names, "push")
    missing = [name for name in names if name not in notebook.shell.user_ns]
    if missing:
        raise UsageError(f"%mhjax push: this notebook has no {', '.join(missing)}; define it in a plain cell first")
    values = {name: notebook.shell.user_ns[name] for name in names}
    cluster = starting.current()
    cluster.push(ranks=args.ranks, **values)
    count = cluster.process_count
    where = say_ranks(range(count) if args.ranks is None else parse_ranks(args.ranks, count))
    for name, value in values.items():
        print(f"{name} · {_describe(value)} · on {where}")


def _push_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a variable of this notebook")
    parser.add_argument("--ranks", metavar="SPEC", help="bind it on these ranks only")


def _vars(notebook: Notebook, args: argparse.Namespace) -> None:
    board.show_vars(gather_vars(starting.current().vars()))


def _check(notebook: Notebook, args: argparse.Namespace) -> None:
    board.show_check(starting.current().check(*args.names))


def _check_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a variable of the ranks")


def _no_flags(parser: MagicArgumentParser) -> None:
    return


VERBS: dict[str, tuple[Verb, Callable[[MagicArgumentParser], None]]] = {
    "accept": (_accept, _no_flags),
    "attach": (_attach, _stop_flags),
    "auto": (_auto, _auto_flags),
    "check": (_check, _check_flags),
    "collectives": (verbs_collectives.collectives, verbs_collectives.collectives_flags),
    "doctor": (verbs_doctor.run_doctor, verbs_doctor.doctor_flags),
    "export": (verbs_export.export, verbs_export.export_flags),
    "interrupt": (_interrupt, _no_flags),
    **verbs_hosts.VERBS,
    **verbs_layout.VERBS,
    "list": (_list, _no_flags),
    "panel": (panel, panel_flags),
    "pull": (_pull, _pull_flags),
    "push": (_push, _push_flags),
    "restart": (_restart, _restart_flags),
    "start": (start_verb, add_start_flags),
    "status": (_status, _no_flags),
    "stop": (_stop, _stop_flags),
    "vars": (_vars, _no_flags),
    "where": (_where, _stop_flags),
}


_TAKE_NAMES = frozenset({"check", "pull", "push"})
"""Verbs whose words are names: one that is an expression is told as it was typed, quotes included."""


def plain_help(text: str) -> str:
    """Take the marks out of a help text that IPython puts in for its own manual."""
    return text.removeprefix("::").replace("<{", "{").replace("}>", "}").strip()


class _VerbParser(MagicArgumentParser):
    def __init__(self, verb: str) -> None:
        # IPython's help puts a % before the name.
        super().__init__(prog=f"mhjax {verb}", add_help=True)  # type: ignore[no-untyped-call]  # IPython has no types

    def format_help(self) -> str:
        return f"{plain_help(super().format_help())}\n"


def verb_parser(name: str) -> MagicArgumentParser | None:
    """Make the parser of a verb; None where there is no such verb."""
    if name not in VERBS:
        return None
    parser = _VerbParser(name)
    VERBS[name][1](parser)
    return parser


def _split(line: str) -> list[str]:
    verb = line.split()[:1]
    try:
        if verbs_layout.EXPRESSION_VERBS & set(verb):
            return split_expression(line)
        return list(map(unquote, split_expression(line))) if _TAKE_NAMES & set(verb) else shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%mhjax {line}: {error}") from error


def run_verb(notebook: Notebook, line: str) -> Any:
    """Run one `%mhjax` line.

    Raises:
        UsageError: no such verb, an unknown flag, a bad value.
    """
    words = _split(line)
    if not words:
        raise UsageError(f"%mhjax VERB, where VERB is one of {', '.join(sorted(VERBS))}; %%mhjax? is the manual")
    name, *rest = words
    if name in ("--help", "-h", "help"):
        print(
            f"%mhjax VERB, where VERB is one of {', '.join(sorted(VERBS))}; %mhjax VERB --help tells more, %%mhjax? is the manual"
        )
        return None
    if (parser := verb_parser(name)) is None:
        near = get_close_matches(name, VERBS, 1)
        # A flag here is one of `%%mhjax`, most often.
        meant = f"did you mean {near[0]}? Else " if near else "%%mhjax takes flags; " if name.startswith("-") else ""
        raise UsageError(f"%mhjax {name}: there is no such verb; {meant}choose one of {', '.join(sorted(VERBS))}")
    try:
        args = parser.parse_args(rest)
        # For a verb that takes a call: words lose their quotes.
        args.line = line.strip()[len(name) :].strip()
    except UsageError as error:
        raise UsageError(f"%mhjax {name}: {error}; %mhjax {name} --help tells more") from error
    except SystemExit:
        # argparse ends the program after --help; a notebook goes on.
        return None
    try:
        return VERBS[name][0](notebook, args)
    except (InvalidRequest, NotStarted, ShardingError) as error:
        raise UsageError(str(error)) from error
    except KeyboardInterrupt as error:
        told = f"KeyboardInterrupt: %mhjax {name} was interrupted{_say_broken_off(name, args)}"
        # As `MhnbError` does for itself: the user knows what he pressed, and our frames tell him nothing.
        error._render_traceback_ = lambda: [told]  # type: ignore[attr-defined]
        raise


def _say_broken_off(name: str, args: argparse.Namespace) -> str:
    """Say what an interrupted verb has left behind, where that is not plain."""
    if name == "start" and not any(cluster.name == args.name for cluster in starting.all_clusters()):
        return "; every process that it had started was ended"
    if name == "restart" and (gone := starting.latest()).state == "stopped":
        lost = "; no rank runs any more"
        return (
            f"{lost}, and %mhjax restart --replay brings back what they held" if starting.can_come_back(gone) else lost
        )
    return ""


def stop_all(clusters: Sequence[Any] | None = None) -> None:
    """Stop every cluster of this process."""
    for cluster in clusters if clusters is not None else starting.all_clusters():
        cluster.stop()
        print(f"mhjax · {cluster.name} stopped", file=sys.stderr)
