"""Replace parts of IPython and libraries in a rank's shell.

A global array is shown with shape, mesh, spec and cost, alone or in a container, in the same words on every rank. JAX's own text
shows only shape and dtype, because more would need communication. Only a fully replicated array has its numbers on every rank,
and shows them first.

`In` and `Out` are lists in memory, numbered by cell number. No database, no thread.
A rank has no keyboard: code that would wait for one raises at once, with the reason and the next step; the debugger is an
exception (`debugging.py`).
Libraries that draw in a browser draw what a rank can send: tqdm draws text, and matplotlib draws pictures. Widgets of a rank
reach no browser; text bars can be folded into one.
"""

from __future__ import annotations

import builtins
import code
import functools
import getpass
import importlib
import linecache
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

import IPython
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell

from mhnb.adapters.jax_arrays import is_global_array, read_layout
from mhnb.errors import NoKeyboard
from mhnb.rank.execution.cell_names import CELL_NAMES
from mhnb.rank.jax_private import ARRAY_CLASSES
from mhnb.sharding.layout import format_array_line


def register_array_reprs(shell: Any) -> None:
    """Make a shell describe global arrays; local ones keep JAX's text."""
    formatter = shell.display_formatter.formatters["text/plain"]
    for module, name in ARRAY_CLASSES:
        formatter.for_type_by_name(module, name, _print_array)


def draw_shardings_without_color() -> None:
    """Make JAX draw shardings with lines between boxes, not with colours.

    Boxes that only colours separate would be lost in the text form, and on sites that show notebooks without their styles.
    """
    import jax

    for name in ("visualize_array_sharding", "visualize_sharding"):
        if (draw := getattr(jax.debug, name, None)) is not None:
            setattr(jax.debug, name, _without_color(draw))


def _without_color(draw: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        return draw(*args, **({} if "color_map" in kwargs else {"use_color": False}) | kwargs)

    return drawn


def _print_array(array: Any, printer: Any, cycle: bool) -> None:  # noqa: ARG001, FBT001 - the signature is IPython's
    # In a container each array has one line: a scalar shows its value, all others are described.
    is_top_level = len(getattr(printer, "stack", ())) <= 1
    _print_lines(_describe(array, is_top_level=is_top_level) if is_global_array(array) else repr(array), printer)


def _describe(array: Any, *, is_top_level: bool) -> str:
    try:
        line = format_array_line(read_layout(array))
    except Exception as error:  # noqa: BLE001 - a user's own sharding may raise anything; the cell must not fail
        return f"{array!r}  # its sharding cannot be read: {type(error).__name__}: {error}"
    if array.is_deleted():
        return f"{line} · deleted"
    value = _format_value(array)
    if is_top_level:
        return f"{value}\n{line}" if value else line
    return value if value and array.ndim == 0 else line


def _format_value(array: Any) -> str:
    """Return JAX's text of a fully replicated array; empty for any other."""
    if not array.is_fully_replicated:
        return ""
    try:
        return repr(array)
    except Exception as error:  # noqa: BLE001 - the computation failed, which using it raises; showing it must not fail the cell
        return f"its value cannot be read: {type(error).__name__}: {error}"


def _print_lines(text: str, printer: Any) -> None:
    """Print text as IPython's own printer prints a repr."""
    with printer.group():
        for at, line in enumerate(text.splitlines()):
            if at:
                printer.break_()
            printer.text(line)


# -- code that waits for a keyboard raises


_PUSH_HINT = "Read the value in a notebook cell instead: name = {what}(...), then %mhjax push name."
_DEBUG_HINT = "After an error, %mhjax debug opens the debugger."
_PRINT_HINT = "Print the value instead, or fetch it into the notebook with %mhjax pull NAME."


def disable_stdin(shell: InteractiveShell) -> None:
    """Make input, getpass and other functions that read a terminal raise."""
    builtins.input = _make_refusal("input()", _PUSH_HINT.format(what="input"))
    getpass.getpass = _make_refusal("getpass()", _PUSH_HINT.format(what="getpass.getpass"))
    # These two would read end-of-file and continue without a message.
    code.InteractiveConsole.interact = _make_refusal("code.interact()", _PRINT_HINT)  # type: ignore[method-assign]
    IPython.embed = _make_refusal("IPython.embed()", _PRINT_HINT)
    shell.register_magic_function(_make_refusal("%pdb", _DEBUG_HINT), "line", "pdb")


def _make_refusal(what: str, hint: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NoKeyboard(f"{what} is not available on a rank, because a rank has no keyboard. {hint}", what=what)

    refuse.__name__ = refuse.__qualname__ = what.strip("%()").rpartition(".")[2]
    refuse.__doc__ = "Raise, because a rank has no keyboard."
    return refuse


def without_input(command: str) -> str:
    """Return a `!` command with an empty standard input.

    Its outputs stay a terminal. The user's own shell runs it, whatever its language.
    """
    return shlex.join(["sh", "-c", 'exec "$0" -c "$1" </dev/null', os.environ.get("SHELL") or "sh", command])


# -- tqdm and matplotlib without a browser


_TQDM_MODULES = {
    # The module in which tqdm checks whether it runs in a notebook. The check has changed between versions.
    "tqdm.autonotebook": ("tqdm", "trange"),
    "tqdm.notebook": ("tnrange", "tqdm", "tqdm_notebook", "trange"),
}
"""The names that each of them provides."""


class _Substitute(MetaPathFinder, Loader):
    """Import hook that provides some modules in place of the installed ones.

    Args:
        names: the full names of the modules.
        fill: fills an empty module of one of these names.
    """

    def __init__(self, names: Collection[str], fill: Callable[[ModuleType], None]) -> None:
        self._names, self._fill = frozenset(names), fill

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a spec for those modules."""
        return ModuleSpec(fullname, self) if fullname in self._names else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Use Python's default module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module."""
        self._fill(module)


def _fill_tqdm(module: ModuleType) -> None:
    """Provide tqdm's text bars instead of its widgets and automatic choice."""
    # tqdm's own package has loaded `tqdm.std` before it imports this module.
    std, names = sys.modules["tqdm.std"], _TQDM_MODULES[module.__name__]
    vars(module).update({name: std.trange if "range" in name else std.tqdm for name in names}, __all__=list(names))


_BROWSER_BACKENDS = ("matplotlib.backends.backend_nbagg", "ipympl.backend_nbagg")
"""Backends of matplotlib that need a browser."""


def _fill_inline_backend(module: ModuleType) -> None:
    """Substitute matplotlib's inline backend for a browser's, and print a note."""
    # Installed with IPython, like the inline backend itself.
    backend_inline = importlib.import_module("matplotlib_inline.backend_inline")
    vars(module).update({name: value for name, value in vars(backend_inline).items() if name[:1] != "_"})
    print(f"mhnb: {NO_BROWSER_NOTE.format(f'the backend {module.__name__}')}", file=sys.stderr)


NO_BROWSER_NOTE = "{} needs a browser or a screen, which a rank does not have; using inline instead"


def install_text_output() -> None:
    """Install the import hooks; a second call changes nothing."""
    if not any(isinstance(finder, _Substitute) for finder in sys.meta_path):
        sys.meta_path[:0] = [
            _Substitute(_TQDM_MODULES, _fill_tqdm),
            _Substitute(_BROWSER_BACKENDS, _fill_inline_backend),
        ]


# -- warnings


def name_cells_in_warnings() -> None:
    """Name cells in warnings as the notebook shows them."""
    original = warnings.formatwarning
    if getattr(original, "names_cells", False):
        return

    @functools.wraps(original)
    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        # The text of the line is known by the cell's own file name.
        text = linecache.getline(filename, lineno) if line is None else line
        return original(message, category, CELL_NAMES.format_file(filename), lineno, text)

    format_warning.names_cells = True  # type: ignore[attr-defined]
    warnings.formatwarning = format_warning


# -- `In` and `Out` of a rank


class RankHistory(HistoryManager):
    """IPython's history without its database, which would dominate `run_cell`'s cost."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits, enabled=False)
        self._recent = ("", "", "")

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        """Store a cell under its number; skipped numbers get empty text."""
        raw = (source if source_raw is None else source_raw).rstrip("\n")
        _store_at(self.input_hist_parsed, line_num, source.strip("\n"))
        _store_at(self.input_hist_raw, line_num, raw)
        earlier = dict(zip(("_i", "_ii", "_iii"), self._recent, strict=True))
        self._recent = (raw, *self._recent[:2])
        shell = self.shell
        for names in (shell.user_ns, shell.user_ns_hidden):
            names.update(earlier)
            names[f"_i{line_num}"] = raw

    def store_output(self, line_num: int) -> None:
        """Do nothing: outputs are in `Out` already."""

    def get_tail(
        self,
        n: int | None = 10,
        raw: bool = True,  # noqa: FBT001, FBT002 - IPython's signature
        output: bool = False,  # noqa: FBT001, FBT002
        include_latest: bool = False,  # noqa: FBT001, FBT002
    ) -> Iterable[tuple[int, int, Any]]:
        """Return the last cells of this session, which is the only one."""
        stop = len(self.input_hist_raw) - (not include_latest)
        return list(self.get_range(0, max(1, stop - (n or 10)), stop, raw, output))


def _store_at(history: list[str], number: int, text: str) -> None:
    history.extend([""] * (number + 1 - len(history)))
    history[number] = text
