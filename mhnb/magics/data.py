"""The commands of `%mhjax` for variables, outputs and scripts.

`pull`, `push`, `vars` and `check` move variables between the notebook and the ranks, or inspect them. `show` shows outputs.
`export FILE.py` writes the cells so far as one script that runs without mhnb.
"""

from __future__ import annotations

import argparse
from keyword import iskeyword
from typing import Any

from IPython.core.error import UsageError

from mhnb.cluster import manager
from mhnb.cluster.export import export_cluster, parse_without
from mhnb.cluster.requests import check_names
from mhnb.commands.command import Command
from mhnb.core.cell_name import parse_cell_argument
from mhnb.core.ranks import describe_ranks, parse_ranks
from mhnb.errors import InvalidRequest
from mhnb.magics.session import Session, uses_result
from mhnb.magics.settings import VIEWS
from mhnb.sharding.layout import format_nbytes
from mhnb.system.run_dir import expand_user
from mhnb.view.live.screen import show_document
from mhnb.view.progress import TransferLine
from mhnb.view.reports.variables import build_check, build_vars


def _pull(session: Session, args: argparse.Namespace) -> Any:
    targets = _name_targets(args)
    cluster = manager.current()
    with TransferLine(f"pulling {', '.join(args.names)}") as line:
        values = cluster.pull_values(args.names, ranks=args.ranks, each=args.each, on_progress=line.report)
        bound = dict(zip(targets, (values,) if len(args.names) == 1 else values, strict=True))
        session.shell.user_ns.update(bound)
        line.end("\n".join(f"{name} · {_describe_value(value)}" for name, value in bound.items()))
    # Return the values for `x = %mhjax pull x`. A command on its own returns None, because IPython would show the value
    # and keep hundreds of megabytes in Out.
    return values if uses_result(session.shell.user_ns) else None


def _name_targets(args: argparse.Namespace) -> list[str]:
    """Return the names that the notebook binds.

    Raises:
        InvalidRequest: `--as` with several variables, or without a Python name.
    """
    if args.target is None:
        return list(args.names)
    if len(args.names) != 1:
        raise InvalidRequest(f"pull --as {args.target}: expected one variable, got {len(args.names)}")
    if not args.target.isidentifier() or iskeyword(args.target):
        raise InvalidRequest(f"pull --as {args.target!r}: expected a Python name")
    return [args.target]


def _describe_value(value: Any) -> str:
    if all(hasattr(value, name) for name in ("shape", "dtype", "nbytes")):
        return f"{value.dtype}{list(value.shape)}, {format_nbytes(value.nbytes)}"
    return type(value).__name__


def _pull_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="variable on the ranks")
    parser.add_argument("--ranks", metavar="SPEC", help="fetch from these ranks only, such as 0,2-3")
    parser.add_argument("--each", action="store_true", help="fetch a list with the value of each rank")
    parser.add_argument(
        "--as", dest="target", metavar="NAME", help="bind the value to this name in the notebook (one variable only)"
    )


def _push(session: Session, args: argparse.Namespace) -> None:
    names = check_names(args.names, "push")
    missing = [name for name in names if name not in session.shell.user_ns]
    if missing:
        raise UsageError(
            f"%mhjax push: this notebook has no variable {', '.join(missing)}; define it in a notebook cell first"
        )
    values = {name: session.shell.user_ns[name] for name in names}
    cluster = manager.current()
    count = cluster.process_count
    ranks_text = describe_ranks(range(count) if args.ranks is None else parse_ranks(args.ranks, count))
    with TransferLine(f"pushing {', '.join(names)} to {ranks_text}") as line:
        cluster.push_values(values, ranks=args.ranks, on_progress=line.report)
        line.end("\n".join(f"{name} · {_describe_value(value)} · on {ranks_text}" for name, value in values.items()))


def _push_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="variable of this notebook")
    parser.add_argument("--ranks", metavar="SPEC", help="push to these ranks only, such as 0,2-3")


def _vars(session: Session, args: argparse.Namespace) -> None:
    show_document(build_vars(manager.current().vars()))


def _check(session: Session, args: argparse.Namespace) -> None:
    show_document(build_check(manager.current().check(*args.names)))


def _check_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="variable on the ranks")


# -- the command for outputs: `%mhjax show`


def _show(session: Session, args: argparse.Namespace) -> None:
    """Open the panel for a result, or with `off` close it.

    Raises:
        UsageError: there is no result yet, or the cell does not exist.
    """
    if args.what == "off":
        if not session.close_panel():
            raise UsageError("%mhjax show off: no panel is open")
        return
    cell = None if args.what is None else parse_cell_argument(args.what)
    if args.what is not None and cell is None:
        raise UsageError(f"%mhjax show {args.what!r}: expected a cell, such as In[7] or 7, or off")
    if not session.open_panel(cell, view=args.view or session.settings.view):
        known = session.describe_results()
        if cell is None or not known:
            raise UsageError("%mhjax show: no cell has run on the ranks yet; run a %%mhjax cell first")
        raise UsageError(
            f"%mhjax show: the result of {cell.name} is not among the last {session.max_results}, which are of {known}."
            " Name one of these, or run the cell again"
        )


def _show_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="CELL|off",
        help="earlier cell, such as In[7] (default: the last one); off closes the panel",
    )
    parser.add_argument("--view", choices=VIEWS, help="how to arrange the outputs (default: fold, or c.Mhjax.view)")


def add_panel_start_flags(group: argparse._ArgumentGroup) -> None:
    """Add the panel flag of `%mhjax start`."""
    group.add_argument(
        "--panel",
        type=lambda text: "keep" if text == "stay" else text,
        choices=("keep", "close"),
        help="keep: leave the widget of each cell open while the kernel runs; close: stop doing so",
    )


# -- `%mhjax export FILE.py`


def _export(session: Session, args: argparse.Namespace) -> None:
    path = expand_user(args.file, "export")
    if path.suffix != ".py":
        raise InvalidRequest(f"export {args.file}: expected the name of a Python file, such as train.py")
    without = parse_without(args.without)
    print(*export_cluster(manager.current(), path, sbatch=args.sbatch, without=without), sep="\n")


def _export_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="script to write, such as train.py")
    parser.add_argument(
        "--sbatch", action="store_true", help="also write a batch script for Slurm, such as train.sbatch"
    )
    parser.add_argument(
        "--without", metavar="CELL,NAME,...", help="leave out these cells and pushed names, such as In[3],lr"
    )


COMMANDS = (
    Command(
        "pull",
        _pull,
        "Copy variables from the ranks to this notebook, as NumPy arrays.",
        "values",
        _pull_flags,
        "NAME... [--ranks SPEC] [--each] [--as NAME]",
        splits="names",
    ),
    Command(
        "push",
        _push,
        "Copy variables of this notebook to every rank.",
        "values",
        _push_flags,
        "NAME... [--ranks SPEC]",
        splits="names",
    ),
    Command("vars", _vars, "List the variables on the ranks, and where they differ.", "values"),
    Command(
        "check",
        _check,
        "Compare variables across the ranks and replicas by hash.",
        "values",
        _check_flags,
        "NAME...",
        splits="names",
    ),
    Command(
        "show",
        _show,
        "Show a result in a widget with tabs, grid, filter, search and differences.",
        "look",
        _show_flags,
        "[In[7]|off] [--view tabs]",
        aliases=("panel",),
        splits="cells",
    ),
    Command(
        "export",
        _export,
        "Write the cells so far as one script that runs without mhnb.",
        "take away",
        _export_flags,
        "FILE.py [--sbatch]",
        splits="cells",
    ),
)
"""The commands of this module."""
