"""Make code that would wait for a keyboard raise at once, with the reason and the next step: a rank has no keyboard."""

from __future__ import annotations

import builtins
import code
import functools
import getpass
import os
import pdb
import shlex
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import IPython
from IPython.core import debugger
from IPython.core.interactiveshell import InteractiveShell

from mhnb.errors import NoKeyboard

__all__ = ["refuse_jax_breakpoint", "refuse_keyboard", "without_input"]

_PUSH = "Ask in a plain notebook cell, name = {what}(...), then %mhjax push name."
_PRINT = 'Print what you want to see: jax.debug.print("{x}", x=x).'
_LOOK = "Print what you want to see, or bring it to the notebook with %mhjax pull NAME."


def refuse_keyboard(shell: InteractiveShell) -> None:
    """Replace input, getpass, breakpoint, pdb and the debugger's magics by functions that raise."""
    builtins.input = _refusal("input()", _PUSH.format(what="input"))
    getpass.getpass = _refusal("getpass()", _PUSH.format(what="getpass.getpass"))
    sys.breakpointhook = _refusal("breakpoint()", _LOOK)
    # Every other debugger, such as IPython's own or ipdb, ends in `interaction`.
    pdb.set_trace = _refusal("pdb.set_trace()", _LOOK)
    # Raise at the call itself: it would stop at the next line, which may be another function's, or not exist.
    pdb.Pdb.set_trace = _refusal("pdb", _LOOK)  # type: ignore[method-assign]
    # These two would read end-of-file and continue without a message.
    code.InteractiveConsole.interact = _refusal("code.interact()", _LOOK)  # type: ignore[method-assign]
    IPython.embed = _refusal("IPython.embed()", _LOOK)
    debugger.Pdb.__init__ = _without_terminal(debugger.Pdb.__init__)  # type: ignore[method-assign]
    pdb.Pdb.interaction = _refusal("pdb", _LOOK)  # type: ignore[method-assign]
    for magic, kind in (("debug", "line_cell"), ("pdb", "line")):
        shell.register_magic_function(_refusal(f"%{magic}", _LOOK), kind, magic)


def refuse_jax_breakpoint(jax: Any) -> None:
    """Make JAX's own debugger raise when it is called. Its prompt would read end-of-file, and fail the program with that."""
    jax.debug.breakpoint = _refusal("jax.debug.breakpoint()", _PRINT)


def _without_terminal(original: Callable[..., None]) -> Callable[..., None]:
    """Make IPython's terminal debuggers raise, ipdb's included: without a terminal they cannot even be created."""
    refuse = _refusal("pdb", _LOOK)

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(type(self), "pt_init"):
            refuse()
        original(self, *args, **kwargs)

    return make


def _refusal(what: str, instead: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NoKeyboard(
            f"{what} has no keyboard to read from: this code runs on a rank, and ranks have none. {instead}", what=what
        )

    refuse.__name__ = refuse.__qualname__ = what.strip("%()").rpartition(".")[2]
    refuse.__doc__ = "Refused on a rank: there is no keyboard."
    return refuse


def without_input(command: str) -> str:
    """Return a `!` command that reads end-of-file from its standard input; its outputs stay a terminal.

    The user's own shell runs it, whatever its language.
    """
    return shlex.join(["sh", "-c", 'exec "$0" -c "$1" </dev/null', os.environ.get("SHELL") or "sh", command])
