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

__all__ = ["disable_jax_breakpoint", "disable_stdin", "without_input"]

_PUSH_HINT = "Ask in a plain notebook cell, name = {what}(...), then %mhjax push name."
_JAX_PRINT_HINT = 'Print what you want to see: jax.debug.print("{x}", x=x).'
_PRINT_HINT = "Print what you want to see, or bring it to the notebook with %mhjax pull NAME."


def disable_stdin(shell: InteractiveShell) -> None:
    """Replace input, getpass, breakpoint, pdb and the debugger's magics by functions that raise."""
    builtins.input = _make_refusal("input()", _PUSH_HINT.format(what="input"))
    getpass.getpass = _make_refusal("getpass()", _PUSH_HINT.format(what="getpass.getpass"))
    sys.breakpointhook = _make_refusal("breakpoint()", _PRINT_HINT)
    # Every other debugger, such as IPython's own or ipdb, ends in `interaction`.
    pdb.set_trace = _make_refusal("pdb.set_trace()", _PRINT_HINT)
    # Raise at the call itself: it would stop at the next line, which may be another function's, or not exist.
    pdb.Pdb.set_trace = _make_refusal("pdb", _PRINT_HINT)  # type: ignore[method-assign]
    # These two would read end-of-file and continue without a message.
    code.InteractiveConsole.interact = _make_refusal("code.interact()", _PRINT_HINT)  # type: ignore[method-assign]
    IPython.embed = _make_refusal("IPython.embed()", _PRINT_HINT)
    debugger.Pdb.__init__ = _refuse_terminal_debuggers(debugger.Pdb.__init__)  # type: ignore[method-assign]
    pdb.Pdb.interaction = _make_refusal("pdb", _PRINT_HINT)  # type: ignore[method-assign]
    for magic, kind in (("debug", "line_cell"), ("pdb", "line")):
        shell.register_magic_function(_make_refusal(f"%{magic}", _PRINT_HINT), kind, magic)


def disable_jax_breakpoint(jax: Any) -> None:
    """Make JAX's own debugger raise when it is called. Its prompt would read end-of-file, and fail the program with that."""
    jax.debug.breakpoint = _make_refusal("jax.debug.breakpoint()", _JAX_PRINT_HINT)


def _refuse_terminal_debuggers(original: Callable[..., None]) -> Callable[..., None]:
    """Make IPython's terminal debuggers raise, ipdb's included: without a terminal they cannot even be created."""
    refuse = _make_refusal("pdb", _PRINT_HINT)

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(type(self), "pt_init"):
            refuse()
        original(self, *args, **kwargs)

    return make


def _make_refusal(what: str, hint: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NoKeyboard(
            f"{what} has no keyboard to read from: this code runs on a rank, and ranks have none. {hint}", what=what
        )

    refuse.__name__ = refuse.__qualname__ = what.strip("%()").rpartition(".")[2]
    refuse.__doc__ = "Refused on a rank: there is no keyboard."
    return refuse


def without_input(command: str) -> str:
    """Return a `!` command that reads end-of-file from its standard input; its outputs stay a terminal.

    The user's own shell runs it, whatever its language.
    """
    return shlex.join(["sh", "-c", 'exec "$0" -c "$1" </dev/null', os.environ.get("SHELL") or "sh", command])
