"""How a rank shows a global array, alone or within a container: shape, mesh, spec and cost, the same words on every rank.

JAX's own text would say only shape and dtype; to say more it would have to communicate. Only a fully replicated array has its
numbers on every rank, and shows them first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from mhnb.rank.asks.layouts import is_global, read_layout
from mhnb.sharding.words import format_array_line

__all__ = ["draw_shardings_in_lines", "show_global_arrays"]

_CLASSES = (
    ("jaxlib._jax", "ArrayImpl"),
    ("jax._src.prng", "PRNGKeyArray"),
    ("jax._src.random.prng", "PRNGKeyArray"),
)
"""Classes of arrays and of arrays of keys, in the JAX versions known. Not jax.Array: IPython prefers the `__repr__` of a
class to what is registered for its bases. By name, so that nothing private is imported and a class that is gone is no error:
its arrays are then shown as JAX shows them."""


def show_global_arrays(shell: Any) -> None:
    """Let a shell show global arrays so. An array that lies on this rank alone keeps JAX's text, with its numbers."""
    formatter = shell.display_formatter.formatters["text/plain"]
    for module, name in _CLASSES:
        formatter.for_type_by_name(module, name, _print_array)


def draw_shardings_in_lines() -> None:
    """Have JAX's own drawing of a sharding set its boxes off by lines, as it does without a terminal.

    By colours alone they would be lost in the text form, and on sites that show notebooks without their styles.
    """
    import jax

    for name in ("visualize_array_sharding", "visualize_sharding"):
        if (draw := getattr(jax.debug, name, None)) is not None:
            setattr(jax.debug, name, _in_lines(draw))


def _in_lines(draw: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        return draw(*args, **({} if "color_map" in kwargs else {"use_color": False}) | kwargs)

    return drawn


def _print_array(array: Any, printer: Any, cycle: bool) -> None:  # noqa: ARG001, FBT001 - the signature is IPython's
    # Within a container each array has one line: a number stands for itself, all else is described.
    alone = len(getattr(printer, "stack", ())) <= 1
    _print_lines(_describe(array, alone=alone) if is_global(array) else repr(array), printer)


def _describe(array: Any, *, alone: bool) -> str:
    try:
        line = format_array_line(read_layout(array))
    except Exception as error:  # noqa: BLE001 - a sharding of the user's own may raise anything; the cell must not fail
        return f"{array!r}  # its sharding cannot be read: {type(error).__name__}: {error}"
    if array.is_deleted():
        return f"{line} · deleted"
    value = _value(array)
    if alone:
        return f"{value}\n{line}" if value else line
    return value if value and array.ndim == 0 else line


def _value(array: Any) -> str:
    """JAX's own text, with the numbers, where each rank has all of them; nothing is sent for it."""
    if not array.is_fully_replicated:
        return ""
    try:
        return repr(array)
    except Exception as error:  # noqa: BLE001 - the computation failed, which its use raises; the cell must not fail by showing it
        return f"its value cannot be read: {type(error).__name__}: {error}"


def _print_lines(text: str, printer: Any) -> None:
    """Write text as IPython's own printer writes a repr."""
    with printer.group():
        for at, line in enumerate(text.splitlines()):
            if at:
                printer.break_()
            printer.text(line)
