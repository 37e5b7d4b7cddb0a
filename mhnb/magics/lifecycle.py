"""The commands of `%mhjax` for the lifecycle of clusters, such as `start`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from mhnb.cluster import flags, manager, replay
from mhnb.cluster.attach import describe_other_clusters
from mhnb.cluster.cluster import Cluster
from mhnb.cluster.options import START_TIMEOUT_S, StartRequest, resolve_start
from mhnb.cluster.start_summary import summarize_start
from mhnb.cluster.status import describe_location
from mhnb.commands.command import Command
from mhnb.core.arguments import seconds_argument
from mhnb.core.cell_request import GUARDS, guard_argument
from mhnb.core.ranks import pluralize
from mhnb.core.replay import format_report
from mhnb.errors import InvalidRequest, MhnbError, NotStarted
from mhnb.launchers.profiles import format_restart_note
from mhnb.magics.data import add_panel_start_flags
from mhnb.magics.session import CellFlags, Session
from mhnb.magics.settings import Mhjax
from mhnb.view.html import format_seconds
from mhnb.view.progress import ReplayLine, StartDisplay


def add_start_command_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `%mhjax start`."""
    for title in flags.GROUPS:
        flags.flag_group(parser, title)
    flags.add_cluster_start_flags(parser)
    _add_cluster_flags(flags.flag_group(parser, flags.CLUSTER))


def _add_cluster_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--name", default="default", help="name of the cluster (default: default)")
    group.add_argument(
        "--keep",
        action="store_true",
        default=None,
        help="keep the ranks running after this notebook exits; mhnb stop NAME stops them",
    )
    group.add_argument(
        "--standby",
        action="store_true",
        default=None,
        help="keep a second set of ranks on standby, for a quick restart",
    )
    for older, dest in (("--persist", "keep"), ("--spare", "standby")):
        group.add_argument(older, dest=dest, action="store_true", default=None, help=argparse.SUPPRESS)
    group.add_argument(
        "--guard",
        type=guard_argument,
        choices=GUARDS,
        help="when launches are compared across ranks: before each one (lockstep), after the cell (parity), or off "
        "(default: lockstep)",
    )
    group.add_argument(
        "--start-timeout",
        dest="start_timeout_s",
        type=seconds_argument,
        default=START_TIMEOUT_S,
        metavar="SECONDS",
        help=f"limit for the whole start (default: {START_TIMEOUT_S:.0f})",
    )
    add_panel_start_flags(group)


def _start(session: Session, args: argparse.Namespace) -> None:
    if args.panel is not None:
        # Without the flag the setting stays, so running a `%mhjax start` cell again changes nothing.
        session.has_persistent_panels = args.panel == "keep"
    arguments = flags.cluster_start_arguments(args)
    request = resolve_start(**arguments)
    if (running := manager.find_running(request)) is not None:
        manager.make_current(running)
        name = f"{running.name}: " if len(manager.all_clusters()) > 1 else ""
        print(f"mhjax · {name}{running.shape.describe()} already running ({running.state})")
        return
    request = _apply_settings(request, arguments, session.settings)
    with StartDisplay() as progress:
        cluster = manager.start_requested(request, progress.update)
        progress.finish(summarize_start(cluster))


def _apply_settings(request: StartRequest, arguments: dict[str, Any], settings: Mhjax) -> StartRequest:
    """Return the request with missing shape and guard from the settings.

    What is compared with a running cluster stays what was typed.
    """
    defaults: dict[str, Any] = {}
    if arguments.get("guard") is None and settings.guard is not None:
        defaults["guard"] = settings.guard
    if not request.names_shape and (shape := settings.start_shape) is not None:
        defaults |= {"ranks": shape.ranks, "devices": shape.devices}
    if not defaults:
        return request
    return replace(resolve_start(**arguments | defaults), given=request.given)


# -- commands for the lifecycle of clusters


def _interrupt(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.current()
    is_running = cluster.state == "running"
    cluster.interrupt()
    print("mhjax · interrupting the running cell" if is_running else "mhjax · no cell is running; nothing to interrupt")


def _accept(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.current()
    previous_state = cluster.state
    if previous_state == "dead":
        raise InvalidRequest(
            "a dead cluster cannot be accepted, because a rank is lost\n  Fix: %mhjax restart --replay"
        )
    cluster.accept()
    print(
        f"mhjax · {previous_state} accepted, {cluster.state} now"
        if previous_state != cluster.state
        else f"mhjax · {previous_state}: nothing to accept"
    )


def _restart(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.latest()
    # A cell of another thread waits for both, because it needs what the replay restores.
    with manager.announce_replay(cluster) if args.replay else nullcontext():
        _restart_cluster(session, cluster, args)


def _restart_cluster(session: Session, cluster: Cluster, args: argparse.Namespace) -> None:
    to, cell_note = replay.check_replay(cluster, args.to, replay=args.replay, this_generation=args.this_generation)
    if cell_note:
        print(f"mhjax · {cell_note}")
    if note := format_restart_note(cluster.shape, is_detachable=cluster.options.keep):
        print(f"mhjax · {note}")
    loses_state = not args.replay and manager.has_replayable_state(cluster)
    with StartDisplay() as progress:
        new_cluster = manager.restart(cluster, progress.update)
        summary = summarize_start(new_cluster)
        progress.finish(replace(summary, notes=(*summary.notes, manager.STATE_LOST_NOTE)) if loses_state else summary)
    if args.replay:
        _replay(session, new_cluster, to, this_generation=args.this_generation)


def _replay(session: Session, cluster: Cluster, to: int | None, *, this_generation: bool) -> None:
    progress_line = ReplayLine()
    try:
        store_result = partial(session.store_result, cluster)
        report = replay.replay(
            cluster, to, progress_line.begin, store_result, progress_line.tick, this_generation=this_generation
        )
    except BaseException as error:
        # The error gives the details; the progress line must not look as if it were still running.
        progress_line.finish("mhjax · replay stopped" if isinstance(error, MhnbError) else "mhjax · replay interrupted")
        raise
    progress_line.finish(format_report(report, format_seconds(report.wall_s)))


def _stop(session: Session, args: argparse.Namespace) -> None:
    if args.name is None and not manager.all_clusters():
        # Not an error, just as a second `%mhjax start` is not, because a user may run all cells again.
        hint = "; %mhjax list shows other clusters on this machine" if describe_other_clusters(os.environ) else ""
        print(f"mhjax · this notebook has no running cluster; nothing to stop{hint}")
        return
    cluster = manager.current() if args.name is None else manager.by_name(args.name)
    if cluster.state == "stopped":
        print(f"mhjax · {cluster.name}: {cluster.reason or 'already stopped'}")
        return
    cluster.stop()
    print(f"mhjax · {cluster.name}: {pluralize(cluster.process_count, 'rank')} stopped")


def _name_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="name of the cluster (default: the current one)")


def _attach(session: Session, args: argparse.Namespace) -> None:
    with StartDisplay() as progress:
        cluster = manager.attach(args.name, progress.update)
        if cluster.state == "dead":
            # The reason and the fix have already been shown.
            progress.show_failure("found it dead")
            return
        progress.finish(summarize_start(cluster))
    if cluster.state != "clean":
        print(f"mhjax · {cluster.name} is {cluster.state}: {cluster.reason}")


def _detach(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.current() if args.name is None else manager.by_name(args.name)
    if cluster.state == "stopped":
        print(f"mhjax · {cluster.name}: {cluster.reason or 'already stopped'}")
        return
    cluster.detach()
    print(f"mhjax · {cluster.name}: detached; the ranks keep running\n  to attach again: %mhjax attach {cluster.name}")


def _eval(session: Session, args: argparse.Namespace) -> None:
    settings = session.settings
    session.run_cell(
        args.expression, CellFlags(view=settings.view, timeout_s=settings.timeout_s, takes_breakpoints=False)
    )


def _eval_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("expression", metavar="EXPRESSION", help="Python code of one line")


def _list(session: Session, args: argparse.Namespace) -> None:
    own_clusters = manager.all_clusters()
    for cluster in own_clusters:
        location = describe_location(cluster.shape, cluster.ranks)
        in_use_mark = "  current" if len(own_clusters) > 1 and cluster is manager.current() else ""
        print(f"{cluster.name}  {location}  {cluster.state}  generation {cluster.generation}{in_use_mark}")
    others = describe_other_clusters(os.environ)
    print(*others, sep="\n", end="\n" if others else "")
    if not own_clusters and not others:
        print("mhjax · no cluster is running\n  Fix: %mhjax start")


def _auto(session: Session, args: argparse.Namespace) -> None:
    if args.switch == "on" or (args.switch is None and not session.is_auto_mode):
        try:
            manager.current()
        except NotStarted as error:
            print(f"mhjax auto off · {error}")
            return
    session.is_auto_mode = session.is_auto_mode if args.switch is None else args.switch == "on"
    where = (
        "notebook cells run on the ranks; %%local runs one here"
        if session.is_auto_mode
        else "notebook cells run in the notebook"
    )
    print(f"mhjax auto {'on' if session.is_auto_mode else 'off'} · {where}")


def _auto_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "switch",
        nargs="?",
        choices=("on", "off"),
        help="whether notebook cells run on the ranks (default: print whether they do)",
    )


def interrupted_note(name: str, args: argparse.Namespace) -> str:
    """Describe what an interrupted command left behind; empty if obvious."""
    if name == "start" and not any(cluster.name == args.name for cluster in manager.all_clusters()):
        return "; all processes that it had started were stopped"
    if name == "restart" and (stopped_cluster := manager.latest()).state == "stopped":
        note = "; no ranks are running"
        return (
            f"{note}\n  Fix: %mhjax restart --replay (restores the variables)"
            if manager.has_replayable_state(stopped_cluster)
            else note
        )
    return ""


def stop_all(clusters: Sequence[Any] | None = None) -> None:
    """Stop every cluster of this process."""
    for cluster in clusters if clusters is not None else manager.all_clusters():
        cluster.stop()
        print(f"mhjax · {cluster.name} stopped", file=sys.stderr)


COMMANDS = (
    Command(
        "start",
        _start,
        "Start ranks on this machine or on other hosts.",
        "start and stop",
        add_start_command_flags,
        "[N | NxD] [--hosts A,B | --profile NAME] [--keep]",
    ),
    Command("stop", _stop, "End every process of a cluster.", "start and stop", _name_flags, "[NAME]"),
    Command(
        "restart",
        _restart,
        "Start new processes for the same ranks; --replay restores the variables.",
        "start and stop",
        flags.add_replay_flags,
        "[--replay [--to In[7]]]",
        splits="cells",
    ),
    Command(
        "attach",
        _attach,
        "Attach this notebook to a cluster that was started with --keep.",
        "start and stop",
        _name_flags,
        "[NAME]",
    ),
    Command(
        "detach",
        _detach,
        "Detach from a cluster that was started with --keep; its ranks keep running.",
        "start and stop",
        _name_flags,
        "[NAME]",
    ),
    Command("list", _list, "List the clusters of this notebook, and yours on this machine.", "start and stop"),
    Command(
        "eval",
        _eval,
        "Run one line on every rank, and show it as a cell.",
        "run cells",
        _eval_flags,
        "EXPRESSION",
        splits="raw",
    ),
    Command(
        "auto",
        _auto,
        "Send notebook cells to the ranks too; %%local keeps one here.",
        "run cells",
        _auto_flags,
        "on|off",
    ),
    Command("interrupt", _interrupt, "Interrupt the running cell.", "get unstuck"),
    Command(
        "accept", _accept, "Continue with a split or tainted cluster as it is.", "get unstuck", aliases=("continue",)
    ),
)
"""The commands of this module."""
