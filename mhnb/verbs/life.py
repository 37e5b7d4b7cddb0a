"""The commands of `%mhjax` for the lifecycle of clusters: status, list, restart, stop, attach, auto, and others."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.cluster import Cluster
from mhnb.core.asked.numerals import whole_number
from mhnb.core.keep.replay_report import ReplayStep, format_report, format_step
from mhnb.core.ranks import say_count
from mhnb.drive.roll import describe_place
from mhnb.errors import InvalidRequest, MhnbError
from mhnb.frontend.boards import gather_status, gather_summary
from mhnb.frontend.notebook import Notebook
from mhnb.keep import replaying
from mhnb.keep.berth import describe_others
from mhnb.launch.launchers import restart_note
from mhnb.rank.jaxseams import backend_is_initialized
from mhnb.startup import starting
from mhnb.verbs.start import shown
from mhnb.verbs.verb import Verb, no_flags
from mhnb.view.boards import board
from mhnb.view.boards.where import format_where_text
from mhnb.view.words import format_seconds

__all__ = ["VERBS", "say_broken_off", "stop_all"]


def _warnings() -> list[str]:
    """Return a warning if this process has a JAX backend: its devices are not the ranks', and a GPU it uses is not theirs."""
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
    if was == "dead":
        raise InvalidRequest(
            "a dead cluster cannot be accepted, for a rank is gone; go on with %mhjax restart --replay"
        )
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
        _replay(notebook, fresh, args.to)


def _replay(notebook: Notebook, cluster: Cluster, to: int | None) -> None:
    line = board.ProgressLine()

    def show(step: ReplayStep) -> None:
        line.update(format_step(step), step.done / len(step.plan.steps))

    try:
        report = replaying.replay(cluster, to, show, partial(notebook.remember, cluster))
    except BaseException as error:
        # The error gives the details; the progress line must not look as if it were still running.
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
        # Not an error, just as a second `%mhjax start` is not, because a user may run all cells again.
        others = "; %mhjax list shows those of others, or that were left" if describe_others(os.environ) else ""
        print(f"mhjax · no cluster of this notebook runs; nothing to stop{others}")
        return
    cluster = starting.current() if args.name is None else starting.by_name(args.name)
    if cluster.state == "stopped":
        print(f"mhjax · {cluster.name}: {cluster.reason or 'stopped already'}")
        return
    cluster.stop()
    print(f"mhjax · {cluster.name}: {say_count(cluster.process_count, 'rank')} stopped")


def _name_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the cluster's name; else the one in use")


def _attach(notebook: Notebook, args: argparse.Namespace) -> None:
    with board.StartBoard() as progress:
        cluster = starting.attach(args.name, shown(progress))
        if cluster.state == "dead":
            # The reason and the fix have already been shown.
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


VERBS: dict[str, Verb] = {
    "accept": (_accept, no_flags),
    "attach": (_attach, _name_flags),
    "auto": (_auto, _auto_flags),
    "interrupt": (_interrupt, no_flags),
    "list": (_list, no_flags),
    "restart": (_restart, _restart_flags),
    "status": (_status, no_flags),
    "stop": (_stop, _name_flags),
    "where": (_where, _name_flags),
}


def say_broken_off(name: str, args: argparse.Namespace) -> str:
    """Describe the state that an interrupted command left behind, if it is not obvious; otherwise an empty string."""
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
