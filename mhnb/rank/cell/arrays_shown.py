"""Repr of global arrays, alone or in a container: shape, mesh, spec and cost, in the same words on every rank.

JAX's own text shows only shape and dtype, because more would need communication. Only a fully replicated array has its numbers
on every rank, and shows them first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from mhnb.rank.asks.transfer_jax import is_global_array, read_layout
from mhnb.sharding.layout import format_array_line

__all__ = ["draw_shardings_without_color", "register_array_reprs"]

_ARRAY_CLASSES = (
    ("jaxlib._jax", "ArrayImpl"),
    ("jax._src.prng", "PRNGKeyArray"),
    ("jax._src.random.prng", "PRNGKeyArray"),
)
"""Classes of arrays and of key arrays, in the known JAX versions. jax.Array is not listed: IPython prefers the `__repr__` of
a class to a printer that is registered for its bases. Classes are given by name, so that nothing private is imported and a
removed class is no error: its arrays are then shown as JAX shows them.
"""


def register_array_reprs(shell: Any) -> None:
    """Make a shell show global arrays in this form. An array on this rank alone keeps JAX's text, with its numbers."""
    formatter = shell.display_formatter.formatters["text/plain"]
    for module, name in _ARRAY_CLASSES:
        formatter.for_type_by_name(module, name, _print_array)


def draw_shardings_without_color() -> None:
    """Make JAX's own drawing of a sharding separate its boxes by lines, as it does without a terminal.

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
    """Return JAX's own text, with the numbers, if each rank has all of them; else the empty string. Nothing is sent."""
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
