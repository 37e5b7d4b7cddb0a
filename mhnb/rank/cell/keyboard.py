"""A rank has no keyboard: whatever would wait for one raises at once, with the reason and the next step."""

from __future__ import annotations

import builtins
import getpass
import os
import pdb
import shlex
import sys
from typing import Any, NoReturn

from IPython.core.interactiveshell import InteractiveShell

from mhnb.errors import NoKeyboard

__all__ = ["refuse_keyboard", "without_input"]

_PUSH = "Ask in a plain notebook cell, name = {what}(...), then %mhjax push name."
_LOOK = "Print what you want to see, or bring it to the notebook with %mhjax pull NAME."


def refuse_keyboard(shell: InteractiveShell) -> None:
    """Replace input, getpass, breakpoint, pdb and the debugger's magics by their refusals."""
    builtins.input = _refusal("input()", _PUSH.format(what="input"))
    getpass.getpass = _refusal("getpass()", _PUSH.format(what="getpass.getpass"))
    sys.breakpointhook = _refusal("breakpoint()", _LOOK)
    # Whatever else comes to stand in a debugger, such as IPython's own or ipdb, ends in `interaction`.
    pdb.set_trace = _refusal("pdb.set_trace()", _LOOK)
    pdb.Pdb.interaction = _refusal("pdb", _LOOK)  # type: ignore[method-assign]
    for magic, kind in (("debug", "line_cell"), ("pdb", "line")):
        shell.register_magic_function(_refusal(f"%{magic}", _LOOK), kind, magic)


def _refusal(what: str, instead: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NoKeyboard(
            f"{what} has no keyboard to read from: this code runs on a rank, and ranks have none. {instead}", what=what
        )

    refuse.__name__ = refuse.__qualname__ = what.strip("%()").rpartition(".")[2]
    refuse.__doc__ = "Refused on a rank: there is no keyboard."
    return refuse


def without_input(command: str) -> str:
    """Write a command of a `!` line so that it reads the end from its standard input; its outputs stay a terminal.

    The user's own shell runs it, whatever its language.
    """
    return shlex.join(["sh", "-c", 'exec "$0" -c "$1" </dev/null', os.environ.get("SHELL") or "sh", command])
