"""How a rank shows a global array, alone or within a container: shape, mesh, spec and cost, the same words on every rank.

JAX's own text would say only shape and dtype; to say more it would have to communicate.
"""

from __future__ import annotations

from typing import Any

from mhnb.rank.layouts import is_global, read_layout
from mhnb.sharding.words import format_array_line

__all__ = ["show_global_arrays"]

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


def _print_array(array: Any, printer: Any, cycle: bool) -> None:  # noqa: ARG001, FBT001 - the signature is IPython's
    _print_lines(_describe(array) if is_global(array) else repr(array), printer)


def _describe(array: Any) -> str:
    try:
        line = format_array_line(read_layout(array))
    except Exception as error:  # noqa: BLE001 - a sharding of the user's own may raise anything; the cell must not fail
        return f"{array!r}  # its sharding cannot be read: {type(error).__name__}: {error}"
    return f"{line} · deleted" if array.is_deleted() else line


def _print_lines(text: str, printer: Any) -> None:
    """Write text as IPython's own printer writes a repr."""
    with printer.group():
        for at, line in enumerate(text.splitlines()):
            if at:
                printer.break_()
            printer.text(line)
