"""Shell command `mhnb`: `mhnb demo | lab | run | export | doctor | profile | list | stop | reap | where`."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mhnb.cli.profiles import add_profile_command, run_profile_command
from mhnb.cluster.flags import add_doctor_flags, add_start_flags, start_arguments
from mhnb.errors import MhnbError

if TYPE_CHECKING:
    from mhnb.types import StartProgress


def _demo(args: argparse.Namespace) -> int:
    from mhnb.cli.demo import run_demo

    return run_demo(Path(args.html))


def _lab(args: argparse.Namespace) -> int:
    from mhnb.system.resources import copy_notebooks, find_lesson

    if find_spec("jupyterlab") is None:
        print("mhnb lab needs JupyterLab: pip install 'mhnb[lab]'", file=sys.stderr)
        return 2
    lesson = find_lesson(args.lesson, copy_notebooks(Path(args.folder)))
    command = [sys.executable, "-m", "jupyter", "lab", str(lesson), *args.rest]
    print(f"opening {lesson} in JupyterLab, the other lessons beside it; Ctrl-C ends it", flush=True)
    status = _run_until_exit(command)
    if status != 0 and os.geteuid() == 0 and "--allow-root" not in args.rest:
        print(_ROOT_HINT, file=sys.stderr)
    return status


_ROOT_HINT = """mhnb lab: you are root, and as root JupyterLab starts only when told so:
  mhnb lab --allow-root
  make lab LAB=--allow-root"""


def _run_until_exit(command: Sequence[str]) -> int:
    """Run a program that shuts down by itself, and wait for it.

    If `mhnb` ended first, the program's kernels and their ranks would be left running.
    """
    programs: list[subprocess.Popen[bytes]] = []

    def terminate(*_: object) -> None:
        for program in programs:
            program.terminate()

    previous_handlers = {
        # A terminal sends Ctrl-C to the program too, and JupyterLab then asks for confirmation.
        # `SIG_IGN` would be inherited by the program, so use a handler that does nothing.
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminate),
    }
    try:
        programs.append(subprocess.Popen(command))
        status = programs[0].wait()
    finally:
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)
    # A program that was terminated by a requested signal has succeeded.
    return 0 if status in (-signal.SIGINT, -signal.SIGTERM) else status


def _run(args: argparse.Namespace) -> int:
    from mhnb.cli.run_script import read_script, run_script
    from mhnb.cluster.manager import start

    source = read_script(args.script)
    arguments = {"name": f"run-{os.getpid()}"} | start_arguments(args)
    cluster = start(**arguments, on_progress=_QueueProgress())
    try:
        return run_script(cluster, args.script, source, args.arguments)
    finally:
        cluster.stop()


def _doctor(args: argparse.Namespace) -> int:
    from mhnb.cluster.preflight import run_doctor
    from mhnb.view.tables.reports import format_preflight_text

    report = run_doctor(args, on_queue_status=lambda standing: print(f"mhnb doctor: {standing}", file=sys.stderr))
    print(format_preflight_text(report))
    return 0 if report.ok else 1


class _QueueProgress:
    """Progress callback that prints the position of a start in a scheduler's queue each time it changes."""

    _last_printed = ""

    def __call__(self, report: StartProgress) -> None:
        if report.standing not in ("", self._last_printed):
            self._last_printed = report.standing
            print(f"mhnb run: {self._last_printed}", file=sys.stderr)


def _list(args: argparse.Namespace) -> int:
    from mhnb.cluster.attach import describe_cluster, read_cluster_records
    from mhnb.system.run_dir import read_running_clusters

    records = read_running_clusters(os.environ)
    for record in records:
        print(
            f"{describe_cluster(record)}  supervisor {record.supervisor_pid}{' keep' if record.is_detachable else ''}"
        )
    for fault in read_cluster_records(os.environ)[1]:
        print(f"mhnb list: {fault}", file=sys.stderr)
    if not records:
        # To stderr, so that a script that counts lines of stdout finds none.
        print("mhnb list: no cluster of yours runs on this machine", file=sys.stderr)
    return 0


def _print_stop_usage() -> int:
    """Print which cluster names can be given, because no flag ends all clusters of a user at once."""
    from mhnb.system.run_dir import read_running_clusters

    running = sorted({record.name for record in read_running_clusters(os.environ)})
    print(
        "mhnb stop: name the cluster: mhnb stop NAME, or mhnb stop NAME --all where several notebooks have one of that name; "
        + (f"there run: {', '.join(running)}" if running else "none runs on this machine"),
        file=sys.stderr,
    )
    return 2


def _stop(args: argparse.Namespace) -> int:
    if args.name is None:
        return _print_stop_usage()
    from mhnb.cluster.attach import list_cluster_records
    from mhnb.cluster.manager import stop_detached
    from mhnb.core.ranks import pluralize
    from mhnb.launchers.local import end_supervisor
    from mhnb.system.run_dir import find_clusters_named, list_running_clusters

    records_by_run_dir = {str(attachable.run_dir): attachable for attachable in list_cluster_records(os.environ)}
    named = find_clusters_named(os.environ, args.name)
    if len(named) > 1 and not args.all:
        names = ", ".join(record.full_name for record in named)
        print(
            f"mhnb stop {args.name}: {len(named)} clusters of that name run, of several notebooks: {names}; "
            "nothing was stopped, give one of these names, or --all",
            file=sys.stderr,
        )
        return 1
    missing: tuple[str, ...] = ()
    for record in named:
        attachable = records_by_run_dir.get(record.run_dir)
        if attachable is not None and not attachable.shape.is_local:
            # Its ranks are on other machines, and only the owner of the cluster can reach them.
            missing += stop_detached(attachable)
        else:
            end_supervisor(record.supervisor_pid)
        shown_name = args.name if len(named) == 1 else record.full_name
        print(f"{shown_name}: {pluralize(len(record.rank_pids), 'rank')} stopped")
    if not named:
        print(f"mhnb stop {args.name}: no cluster of that name runs; `mhnb list` shows those that do", file=sys.stderr)
        for fault in list_running_clusters(os.environ)[1]:
            print(f"mhnb stop {args.name}: {fault}", file=sys.stderr)
    if missing:
        print(
            f"mhnb stop {args.name}: {', '.join(missing)} did not answer; what runs there waits for a notebook: "
            "when the machine can be reached again, end it there (and all of yours there): pkill -f mhnb.rank.supervisor",
            file=sys.stderr,
        )
    return 0 if named and not missing else 1


def _reap(args: argparse.Namespace) -> int:
    from mhnb.cli.cleanup import end_orphan, find_orphans

    orphans = find_orphans(os.environ)
    for orphan in orphans:
        end_orphan(orphan)
        print(f"ended {orphan.process_count} processes of {orphan.kind} {orphan.pid}: {orphan.reason}")
    if not orphans:
        print("nothing was left behind; `mhnb list` shows what runs, `mhnb stop NAME` ends it")
    return 0


def _where(args: argparse.Namespace) -> int:
    from mhnb.cluster.attach import has_owner
    from mhnb.system.run_dir import find_clusters_named, read_hang_report

    named = find_clusters_named(os.environ, args.name)
    reports = [report for record in named if (report := read_hang_report(record)) is not None]
    for report in reports:
        print(report)
    if not named:
        print(f"mhnb where {args.name}: no cluster of that name runs; `mhnb list` shows those that do", file=sys.stderr)
    elif not reports and any(map(has_owner, named)):
        print(f"{args.name}: no cell runs, or none for longer than 2 s")
    elif not reports:
        is_detachable = any(record.is_detachable for record in named)
        next_step = (
            f"nobody looks at the ranks; %mhjax attach {args.name} takes it over" if is_detachable else "it is ending"
        )
        print(f"{args.name}: no notebook drives it, and {next_step}")
    return 0 if named else 1


def _export(args: argparse.Namespace) -> int:
    from mhnb.cluster.export import export_notebook, parse_without

    script = Path(args.o or Path(args.notebook).with_suffix(".py").name)
    without = parse_without(args.without)
    print(*export_notebook(Path(args.notebook), script, sbatch=args.sbatch, without=without), sep="\n")
    return 0


def _add_stop_flags(parser: argparse.ArgumentParser) -> None:
    # `_stop` reports a missing name, because it knows which clusters are running.
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="its name, or NAME.PID where several notebooks have one of that name"
    )
    parser.add_argument("--all", action="store_true", help="end all of that name")


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mhnb", description="One notebook, many JAX hosts.")
    parser.add_argument("--version", action="version", version=f"mhnb {metadata.version('mhnb')}")
    commands = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    demo = commands.add_parser("demo", help="run the tour on simulated hosts, here in the terminal")
    demo.add_argument("--html", default="mhnb-tour.html", help="where to write the page")
    lab = commands.add_parser(
        "lab",
        help="open the tour and the lessons in JupyterLab",
        usage="mhnb lab [-h] [--lesson NUMBER] [--folder FOLDER] [OPTION OF JUPYTERLAB ...]",
        epilog="Every other option goes to JupyterLab: mhnb lab --no-browser --port 9999. `jupyter lab --help` lists them.",
        # Otherwise argparse would take a JupyterLab option for one of ours if its prefix matches.
        allow_abbrev=False,
    )
    lab.add_argument(
        "--lesson", default="00", metavar="NUMBER", help="which notebook is opened first, such as 03; the tour"
    )
    lab.add_argument("--folder", default="mhnb-notebooks", help="where your copy of the notebooks is put")
    run = commands.add_parser(
        "run",
        help="run a script on every rank",
        usage="mhnb run SCRIPT [OPTION ...] [-- ARGUMENT OF THE SCRIPT ...]",
    )
    run.add_argument("script")
    add_start_flags(run)
    doctor = commands.add_parser("doctor", help="look at this machine, or at hosts, for what would stop a start")
    add_doctor_flags(doctor)
    add_profile_command(
        commands.add_parser("profile", help="the ways to reach hosts: list them, copy one to change it, show it")
    )
    commands.add_parser("list", help="clusters of this user on this machine")
    _add_stop_flags(commands.add_parser("stop", help="end a cluster by name", usage="mhnb stop [-h] NAME [--all]"))
    commands.add_parser("reap", help="end what notebooks that are gone have left behind on this machine")
    commands.add_parser(
        "where", help="where the ranks of a cluster are in the cell that runs: who waits for whom"
    ).add_argument("name")
    export = commands.add_parser(
        "export", help="write a notebook's %%%%mhjax cells as one script that runs without mhnb"
    )
    export.add_argument("notebook")
    export.add_argument("-o", metavar="SCRIPT", help="the script; the notebook's name with .py, here")
    export.add_argument("--sbatch", action="store_true", help="write a batch script for Slurm beside it")
    export.add_argument(
        "--without", metavar="N,NAME,...", help="leave out code cells, counted from 1 or as In[3], and pushed names"
    )
    functions = {
        "demo": _demo,
        "doctor": _doctor,
        "export": _export,
        "lab": _lab,
        "list": _list,
        "profile": run_profile_command,
        "reap": _reap,
        "run": _run,
        "stop": _stop,
        "where": _where,
    }
    for name, function in functions.items():
        commands.choices[name].set_defaults(function=function)
    return parser


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line.

    Options that `lab` does not know go to `rest`, for JupyterLab. Words after the `--` of `run` go to the script.
    """
    parser = _build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if words[:1] == ["run"] and "--" in words else len(words)
    args, rest = parser.parse_known_args(words[:at])
    args.arguments = words[at + 1 :]
    if rest and args.verb != "lab":
        more = "what is the script's comes after --; " if args.verb == "run" else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}; {more}mhnb {args.verb} --help tells more")
    args.rest = [word for word in rest if word != "--"]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = parse_arguments(argv)
    try:
        status = int(args.function(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader, such as `| head`, has closed the pipe. Python would fail again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MhnbError, FileNotFoundError) as error:
        print(f"mhnb {args.verb}: {error}", file=sys.stderr)
        return 1
