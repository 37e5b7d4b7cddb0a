"""The magics `%mhjax` and `%%mhjax`: parse, call, show, raise. All decisions are made in other modules."""

from __future__ import annotations

import shlex
from argparse import SUPPRESS
from keyword import iskeyword
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments

from mhnb.cluster.manager import is_rank_shell
from mhnb.compiler import close_shared
from mhnb.core.arguments import closest_match, seconds_argument, suggest_flags
from mhnb.core.cell_request import route_cell
from mhnb.errors import InvalidRequest, NotClean, NotStarted
from mhnb.magics import commands, completion, lifecycle
from mhnb.magics.session import CellFlags, Session, list_flags


@magic_arguments("%mhjax")
@argument(
    "--ranks", metavar="SPEC", help="ranks that run the cell, like 0,2-3; a collective that leaves them is an error"
)
@argument("--guard", choices=("lockstep", "parity", "off"), help="how the ranks' launches are compared")
@argument("--timeout", type=seconds_argument, metavar="SECONDS", help="interrupt the cell after so many seconds")
@argument("--out", metavar="NAME", help="bind the cell's CellResult to this name here")
@argument("--view", choices=("fold", "tabs", "grid"), default="fold", help="how the ranks' outputs are laid out")
@argument("--collectives", action="store_true", help="show the collectives that the cell launched")
@argument("--quiet", action="store_true", help="show nothing unless the cell fails")
@argument("--auto", action="store_true", help=SUPPRESS)  # auto mode adds this flag
def _cell_arguments(self: Any, args: Any) -> None:
    """Run the cell on every rank, in the same order as every other cell."""


_cell_parser: MagicArgumentParser = _cell_arguments.parser
_DEFAULT_FLAGS = CellFlags()


def parse_cell_flags(line: str) -> CellFlags:
    """Parse the flags of a `%%mhjax` line.

    Raises:
        UsageError: an unknown flag or a bad value; nothing is sent.
    """
    if not line or line.isspace():
        return _DEFAULT_FLAGS
    try:
        args = _cell_parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"%%mhjax {line}: {error}") from error
    except UsageError as error:
        if line.split(maxsplit=1)[0] in commands.COMMANDS:
            raise _command_error(line) from error
        message = suggest_flags(str(error), list_flags(_cell_parser))
        verb = _find_meant_verb(line)
        hint = f"; if the verb {verb} is meant, it takes one %, in a cell of its own: %mhjax {verb}" if verb else ""
        raise UsageError(f"%%mhjax {line}: {message}; %%mhjax? lists the flags{hint}") from error
    if args.out is not None and (not args.out.isidentifier() or iskeyword(args.out)):
        raise UsageError(f"%%mhjax --out {args.out!r}: give a Python name to bind the result to")
    return CellFlags(args.ranks, args.guard, args.timeout, args.out, args.view, args.quiet, args.auto, args.collectives)


_MANUAL = f"""Drive many JAX hosts from this notebook.

A cell that begins with %%mhjax runs on every rank.

{commands.strip_ipython_markup(_cell_parser.format_help())}

verbs:
  %mhjax start [-n N] [--devices D] [--name NAME]  start N hosts with D devices each; 4 x 2
  %mhjax start --hosts A,B[1-3] | --profile NAME   on other machines: ssh, slurm, mpi, gpu, tpu, kubernetes
  %mhjax start --spare                             and as many in reserve, for a restart in a moment
  %mhjax status                                    the ranks, their processes and the cluster's state
  %mhjax vars                                      what the ranks hold
  %mhjax panel [In[7]|off] [--view tabs]           the last result in a widget: tabs, grid, filter, search, differences
  %mhjax pull NAME... [--ranks SPEC] [--each]      bring values here
  %mhjax push NAME... [--ranks SPEC]               bind values of this notebook on every rank
  %mhjax layout EXPRESSION [--to SPEC]             who holds what: an array, a pytree, a mesh of the ranks
  %mhjax plan                                      what if: hosts, a mesh, arrays, specs that need not exist
  %mhjax check NAME...                             compare by hash what the ranks hold
  %mhjax collectives [--why] f(args)               the collectives of a call that is not made, and what they move
  %mhjax auto on|off                               plain cells go to the ranks too; %%local keeps one here
  %mhjax where [NAME]                              where the ranks are in the cell that runs: who waits for whom
  %mhjax interrupt                                 stop the cell that runs
  %mhjax accept                                    go on with a split or tainted cluster as it is
  %mhjax restart [--replay [--to In[7]]]           fresh processes, without their variables; --replay brings them back
  %mhjax export FILE.py [--sbatch]                 the cells so far as one script that runs under srun without mhnb
  %mhjax stop [NAME]                               end every process
  %mhjax sync [DIR] · %mhjax pip install X         bring code to other machines; once per environment, not once per rank
  %mhjax doctor [--hosts A,B | --profile NAME]     look at this machine, or those, for what would stop a start
  %mhjax list                                      the clusters of this notebook, and of others on this machine
  %mhjax start --keep · %mhjax attach [NAME]       ranks that outlive the notebook, and taking them over from another
  %mhjax VERB --help                               every flag of a verb
"""


_AUTO_MODE_NOTE = "auto mode sends plain cells to the ranks: %mhjax auto off keeps them here, %%local keeps this one"


@magics_class
class MhjaxMagics(Magics):
    """The two magics, and `%%local` for auto mode."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.session = Session(shell)

    @line_cell_magic
    def mhjax(self, line: str, cell: str | None = None) -> Any:
        """Replaced by `_MANUAL` below."""
        if cell is None:
            return commands.run_command(self.session, line)
        if {"-h", "--help"} & set(line.split()):
            print(_MANUAL)
            return None
        if line.startswith(completion.MISPLACED_FLAG):
            raise _misplaced_error(line, cell)
        if not cell.strip():
            raise _empty_cell_error(line)
        flags = parse_cell_flags(line)
        if flags.auto:
            # A cell that mixes local and rank code is rejected here, because an input transformer cannot raise a usage
            # error.
            _raise_as_usage_error(route_cell, cell)
        try:
            self.session.run_cell(cell, flags)
        except InvalidRequest as error:
            raise UsageError(f"%%mhjax {error}") from error
        except (NotStarted, NotClean) as error:
            if not flags.auto:
                raise
            # The user typed no `%%mhjax` and may not know that auto mode sent the cell to the ranks.
            raise type(error)(f"{error}\n  {_AUTO_MODE_NOTE}", **error.parts) from None
        return None

    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run a cell in the notebook in auto mode. Without auto mode every plain cell runs there, so it changes nothing."""
        if line.strip():
            raise UsageError(f"%%local takes no arguments, and got {line.strip()!r}")
        self.session.shell.run_cell(cell)


# `%%mhjax?` and `%mhjax?` show the docstring of the magic.
MhjaxMagics.mhjax.__doc__ = _MANUAL


def _misplaced_error(line: str, cell: str) -> UsageError:
    """Build the error for a cell with code above its `%%mhjax` line."""
    typed = cell.splitlines()[int(line.split()[1])].strip()
    return UsageError(
        f"{typed}: this line must be the first of its cell, and there is code above it; nothing was run."
        " Put the code above it into a cell of its own"
    )


def _empty_cell_error(line: str) -> UsageError:
    """Build the error for a cell without code: a command takes one % and its own line; code goes on the lines below."""
    words = line.split()
    if words and words[0] in commands.COMMANDS:
        return _command_error(line)
    if words and not words[0].startswith("-"):
        verb = _find_meant_verb(line)
        hint = f"\nOr, if the verb {verb} is meant, with one %:\n%mhjax {verb}" if verb else ""
        return UsageError(f"%%mhjax {line}: the cell is empty; put the code on the lines below:\n%%mhjax\n{line}{hint}")
    return UsageError(f"%%mhjax{f' {line}' if line else ''}: the cell is empty; put the code on the lines below")


def _command_error(line: str) -> UsageError:
    return UsageError(
        f"%%mhjax {line}: {line.split(maxsplit=1)[0]} is a verb, and takes one %, in a cell of its own: %mhjax {line}"
    )


def _find_meant_verb(line: str) -> str | None:
    """Return the verb that the first word of a `%%mhjax` line misspells; None if it is close to none."""
    word = line.split(maxsplit=1)[0]
    return closest_match(word, commands.COMMANDS) if word.isidentifier() else None


def _raise_as_usage_error(check: Any, source: str) -> None:
    try:
        check(source)
    except InvalidRequest as error:
        raise UsageError(str(error)) from error


def load(shell: Any) -> None:
    """Register the magics, completion and the other IPython hooks. A second call does nothing.

    Raises:
        InvalidRequest: the shell belongs to a rank.
    """
    if is_rank_shell(shell):
        raise InvalidRequest(
            "%load_ext mhnb: this process is a rank of a cluster, and the notebook drives it; put the line into a plain cell"
        )
    if getattr(shell, "mhnb_assist", None) is not None:
        return
    magics = MhjaxMagics(shell)
    shell.register_magics(magics)
    shell.mhnb_assist = completion.ShellHooks(shell, magics.session, _cell_parser)
    shell.mhnb_assist.install()


def unload(shell: Any) -> None:
    """Undo `load` and stop the clusters."""
    if (hooks := getattr(shell, "mhnb_assist", None)) is None:
        return
    hooks.uninstall()
    shell.mhnb_assist = None
    for kind, name in (("line", "mhjax"), ("cell", "mhjax"), ("cell", "local")):
        shell.magics_manager.magics[kind].pop(name, None)
    lifecycle.stop_all()
    close_shared()
