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
from mhnb.core.asked.expression import int_argument
from mhnb.core.keep.replay import ReplayStep, format_report, format_step
from mhnb.core.ranks import pluralize
from mhnb.drive.roll import describe_location
from mhnb.errors import InvalidRequest, MhnbError
from mhnb.frontend.boards import status_from_cluster, summary_from_cluster
from mhnb.frontend.notebook import Session
from mhnb.keep import replaying
from mhnb.keep.berth import describe_other_clusters
from mhnb.launch.profile import format_restart_note
from mhnb.rank.jaxhooks import backend_is_initialized
from mhnb.startup import starting
from mhnb.verbs.start import progress_callback
from mhnb.verbs.verb import Command, no_flags
from mhnb.view.boards import board
from mhnb.view.boards.collectives import format_hang_text
from mhnb.view.style import format_seconds

__all__ = ["COMMANDS", "interrupted_note", "stop_all"]


def _warnings() -> list[str]:
    """Return a warning if this process has a JAX backend: its devices are not the ranks', and a GPU it uses is not theirs."""
    if backend_is_initialized():
        return [
            "this notebook's own process has initialised JAX too; what it computes there has nothing to do with the ranks"
        ]
    return []


def _status(session: Session, args: argparse.Namespace) -> None:
    board.show_status(status_from_cluster(starting.latest(), _warnings()))


def _interrupt(session: Session, args: argparse.Namespace) -> None:
    cluster = starting.current()
    is_running = cluster.state == "running"
    cluster.interrupt()
    print(
        "mhjax · the cell that runs is being interrupted"
        if is_running
        else "mhjax · no cell runs: nothing to interrupt"
    )


def _where(session: Session, args: argparse.Namespace) -> None:
    cluster = starting.current() if args.name is None else starting.by_name(args.name)
    report = cluster.where()
    print("mhjax · no cell runs" if report is None else format_hang_text(report, name=cluster.name))


def _accept(session: Session, args: argparse.Namespace) -> None:
    cluster = starting.current()
    previous_state = cluster.state
    if previous_state == "dead":
        raise InvalidRequest(
            "a dead cluster cannot be accepted, for a rank is gone; go on with %mhjax restart --replay"
        )
    cluster.accept()
    print(
        f"mhjax · {previous_state} accepted, {cluster.state} now"
        if previous_state != cluster.state
        else f"mhjax · {previous_state}: nothing to accept"
    )


def _restart(session: Session, args: argparse.Namespace) -> None:
    cluster = starting.latest()
    replaying.check_replay(cluster, args.to, replay=args.replay)
    if note := format_restart_note(cluster.shape, is_detachable=cluster.options.keep):
        print(f"mhjax · {note}")
    loses_state = not args.replay and starting.has_replayable_state(cluster)
    with board.StartDisplay() as progress:
        new_cluster = starting.restart(cluster, progress_callback(progress))
        summary = summary_from_cluster(new_cluster)
        progress.finish(replace(summary, notes=(*summary.notes, starting.STATE_LOST_NOTE)) if loses_state else summary)
    if args.replay:
        _replay(session, new_cluster, args.to)


def _replay(session: Session, cluster: Cluster, to: int | None) -> None:
    progress_line = board.ProgressLine()

    def show(step: ReplayStep) -> None:
        progress_line.update(format_step(step), step.done / len(step.plan.steps))

    try:
        report = replaying.replay(cluster, to, show, partial(session.store_result, cluster))
    except BaseException as error:
        # The error gives the details; the progress line must not look as if it were still running.
        progress_line.finish("mhjax · replay stopped" if isinstance(error, MhnbError) else "mhjax · replay broken off")
        raise
    progress_line.finish(format_report(report, format_seconds(report.wall_s)))


def _restart_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("--replay", action="store_true", help="run again every cell that ended clean, and push again")
    parser.add_argument(
        "--to", type=int_argument, metavar="SEQ", help="with --replay: stop after the cell of this number"
    )


def _stop(session: Session, args: argparse.Namespace) -> None:
    if args.name is None and not starting.all_clusters():
        # Not an error, just as a second `%mhjax start` is not, because a user may run all cells again.
        hint = "; %mhjax list shows those of others, or that were left" if describe_other_clusters(os.environ) else ""
        print(f"mhjax · no cluster of this notebook runs; nothing to stop{hint}")
        return
    cluster = starting.current() if args.name is None else starting.by_name(args.name)
    if cluster.state == "stopped":
        print(f"mhjax · {cluster.name}: {cluster.reason or 'stopped already'}")
        return
    cluster.stop()
    print(f"mhjax · {cluster.name}: {pluralize(cluster.process_count, 'rank')} stopped")


def _name_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the cluster's name; else the one in use")


def _attach(session: Session, args: argparse.Namespace) -> None:
    with board.StartDisplay() as progress:
        cluster = starting.attach(args.name, progress_callback(progress))
        if cluster.state == "dead":
            # The reason and the fix have already been shown.
            progress.show_failure("found it dead")
            return
        progress.finish(summary_from_cluster(cluster))
    if cluster.state != "clean":
        print(f"mhjax · {cluster.name} is {cluster.state}: {cluster.reason}")


def _list(session: Session, args: argparse.Namespace) -> None:
    own_clusters = starting.all_clusters()
    for cluster in own_clusters:
        location = describe_location(cluster.shape, cluster.ranks)
        in_use_mark = "  cells go here" if len(own_clusters) > 1 and cluster is starting.current() else ""
        print(f"{cluster.name}  {location}  {cluster.state}  generation {cluster.generation}{in_use_mark}")
    others = describe_other_clusters(os.environ)
    print(*others, sep="\n", end="\n" if others else "")
    if not own_clusters and not others:
        print("mhjax · no cluster; %mhjax start starts one")


def _auto(session: Session, args: argparse.Namespace) -> None:
    if args.switch == "on":
        starting.current()
    session.is_auto_mode = session.is_auto_mode if args.switch is None else args.switch == "on"
    where = "plain cells go to the ranks; %%local keeps one here" if session.is_auto_mode else "plain cells stay here"
    print(f"mhjax auto {'on' if session.is_auto_mode else 'off'} · {where}")


def _auto_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument(
        "switch", nargs="?", choices=("on", "off"), help="whether plain cells go to the ranks too; else it is told"
    )


COMMANDS: dict[str, Command] = {
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


def interrupted_note(name: str, args: argparse.Namespace) -> str:
    """Describe the state that an interrupted command left behind, if it is not obvious; otherwise an empty string."""
    if name == "start" and not any(cluster.name == args.name for cluster in starting.all_clusters()):
        return "; every process that it had started was ended"
    if name == "restart" and (stopped_cluster := starting.latest()).state == "stopped":
        note = "; no rank runs any more"
        return (
            f"{note}, and %mhjax restart --replay brings back what they held"
            if starting.has_replayable_state(stopped_cluster)
            else note
        )
    return ""


def stop_all(clusters: Sequence[Any] | None = None) -> None:
    """Stop every cluster of this process."""
    for cluster in clusters if clusters is not None else starting.all_clusters():
        cluster.stop()
        print(f"mhjax · {cluster.name} stopped", file=sys.stderr)
