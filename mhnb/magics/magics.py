"""The magics `%mhjax` and `%%mhjax`: parse, call, show, raise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from keyword import iskeyword
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class, no_var_expand

from mhnb.cluster.manager import is_rank_shell
from mhnb.commands.command import list_flags
from mhnb.compiler import close_shared
from mhnb.core.arguments import closest_match, find_stray_code, suggest_flags
from mhnb.core.cell_request import parse_breakpoints, route_cell
from mhnb.core.shorthand import merge_values, split_ranks_word
from mhnb.errors import InvalidRequest, MhnbError, NotClean, NotStarted
from mhnb.magics import commands, completion, lifecycle
from mhnb.magics.session import CellFlags, Session
from mhnb.magics.settings import load_settings, unload_settings

_Value = TypeVar("_Value")
_cell_parser = commands.cell_parser()
_DEFAULT_FLAGS = CellFlags()
_RANKS = re.compile(r"all|\d[\d,-]*")
"""What users type for ranks, and hardly as the name of a folder."""


def parse_cell_flags(line: str, defaults: CellFlags = _DEFAULT_FLAGS) -> CellFlags:
    """Parse the flags of a `%%mhjax` line.

    Args:
        line: the words after `%%mhjax`.
        defaults: the user's values for flags that the line does not have.

    Raises:
        UsageError: an unknown flag or a bad value; nothing is sent.
    """
    if not line or line.isspace():
        return defaults
    try:
        typed_ranks, words = split_ranks_word(shlex.split(line))
        args = _cell_parser.parse_args(words)
        ranks = merge_values(typed_ranks, args.ranks, names=(f"%%mhjax {typed_ranks}", f"--ranks {args.ranks}"))
    except ValueError as error:
        raise UsageError(f"%%mhjax {line}: {error}") from error
    except UsageError as error:
        if commands.find_command(line.split(maxsplit=1)[0]) is not None:
            raise _command_error(line) from error
        message = suggest_flags(str(error), list_flags(_cell_parser))
        name = _find_meant_command(line)
        if not name and (code := find_stray_code(line, message)):
            flags = line[: -len(code)].rstrip()
            raise UsageError(
                f"%%mhjax {line}: this line takes flags only; put the code on the lines below:"
                f"\n{f'%%mhjax {flags}'.rstrip()}\n{code}"
            ) from error
        hint = f"\n  If you meant the command {name}, put it into a cell of its own: %mhjax {name}" if name else ""
        raise UsageError(f"%%mhjax {line}: {message}{hint}\n  Help: %%mhjax?") from error
    if args.out is not None and (not args.out.isidentifier() or iskeyword(args.out)):
        raise UsageError(f"%%mhjax --out {args.out!r}: expected a Python name for the result")
    if args.trace is not None and _RANKS.fullmatch(args.trace):
        raise UsageError(
            f"%%mhjax --trace {args.trace}: expected a folder for the trace, not ranks"
            f"\n  Fix: %%mhjax {args.trace} --trace\n  Or: %%mhjax --trace ./{args.trace}"
        )
    return CellFlags(
        ranks,
        args.guard,
        defaults.timeout_s if args.timeout is None else args.timeout,
        args.out,
        args.view or defaults.view,
        args.quiet,
        args.auto,
        args.collectives,
        args.debug,
        args.trace,
        tuple(each for text in args.breakpoints for each in _raise_as_usage_error(parse_breakpoints, text)),
    )


_MANUAL = commands.format_manual()


_AUTO_MODE_NOTE = "Auto mode sends notebook cells to the ranks. %mhjax auto off runs them in the notebook; %%local does so for one cell."


@magics_class
class MhjaxMagics(Magics):
    """The two magics, and `%%local` for auto mode."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.session = Session(shell)

    @no_var_expand
    @line_cell_magic
    def mhjax(self, line: str, cell: str | None = None) -> Any:
        """Replaced by `_MANUAL` below."""
        if cell is not None or not commands.takes_code(line):
            # As IPython does it, in the frame of the user's code: `{x}` and `$x` become values of the notebook.
            # In code for the ranks, `f"{x}"` is the rank's.
            line = self.session.shell.var_expand(line, 2 if cell is None else 3)
        if cell is None:
            return commands.run_command(self.session, line)
        if {"-h", "--help"} & set(line.split()):
            print(_MANUAL)
            return None
        if line.startswith(completion.MISPLACED_FLAG):
            raise _misplaced_error(line, cell)
        if not cell.strip():
            raise _empty_cell_error(line)
        settings = self.session.settings
        flags = parse_cell_flags(line, CellFlags(view=settings.view, timeout_s=settings.timeout_s))
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
        """Run a cell in the notebook, also in auto mode."""
        if line.strip():
            raise UsageError(f"%%local takes no arguments; got {line.strip()!r}")
        self.session.shell.run_cell(cell)


# `%%mhjax?` and `%mhjax?` show the docstring of the magic.
MhjaxMagics.mhjax.__doc__ = _MANUAL


def _misplaced_error(line: str, cell: str) -> UsageError:
    """Build the error for a cell with code above its `%%mhjax` line."""
    typed = cell.splitlines()[int(line.split()[1])].strip()
    return UsageError(
        f"{typed}: this line must be the first of its cell, but there is code above it. Nothing was run."
        " Put the code above it into a cell of its own"
    )


def _empty_cell_error(line: str) -> UsageError:
    """Build the error for a cell without code."""
    words = line.split()
    if words and commands.find_command(words[0]) is not None:
        return _command_error(line)
    if words and not words[0].startswith("-") and split_ranks_word(words)[0] is None:
        name = _find_meant_command(line)
        hint = f"\nIf you meant the command {name}, use one %:\n%mhjax {name}" if name else ""
        return UsageError(f"%%mhjax {line}: the cell is empty; put the code on the lines below:\n%%mhjax\n{line}{hint}")
    return UsageError(f"%%mhjax{f' {line}' if line else ''}: the cell is empty; put the code on the lines below")


def _command_error(line: str) -> UsageError:
    return UsageError(
        f"%%mhjax {line}: {line.split(maxsplit=1)[0]} is a command and takes one %, in a cell of its own\n  Fix: %mhjax {line}"
    )


def _find_meant_command(line: str) -> str | None:
    """Return the command that a `%%mhjax` line's first word misspells, or None."""
    word = line.split(maxsplit=1)[0]
    # Rather similar, because the word may be a variable of code that is in the wrong line, such as `rank`.
    return closest_match(word, commands.list_names(), similarity=0.7) if word.isidentifier() else None


def _raise_as_usage_error(check: Callable[[str], _Value], source: str) -> _Value:
    try:
        return check(source)
    except InvalidRequest as error:
        raise UsageError(str(error)) from error


def load(shell: Any) -> None:
    """Register the magics and IPython hooks; a second call does nothing.

    Raises:
        InvalidRequest: the shell belongs to a rank.
    """
    if is_rank_shell(shell):
        raise InvalidRequest(
            "%load_ext mhnb: this process is a rank of a cluster. Run the line in a notebook cell, without %%mhjax"
        )
    if getattr(shell, "mhnb_assist", None) is not None:
        return
    settings = load_settings(shell)
    MhnbError.help_command = "%mhjax help"
    magics = MhjaxMagics(shell)
    magics.session.settings = settings
    shell.register_magics(magics)
    shell.mhnb_assist = completion.ShellHooks(shell, magics.session, _cell_parser)
    shell.mhnb_assist.install()


def unload(shell: Any) -> None:
    """Undo `load` and stop the clusters."""
    if (hooks := getattr(shell, "mhnb_assist", None)) is None:
        return
    hooks.uninstall()
    MhnbError.help_command = ""
    unload_settings(shell)
    shell.mhnb_assist = None
    for kind, name in (("line", "mhjax"), ("cell", "mhjax"), ("cell", "local")):
        shell.magics_manager.magics[kind].pop(name, None)
    lifecycle.stop_all()
    close_shared()
