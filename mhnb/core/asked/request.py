"""Build the request for a cell, and check it before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.asked.select import strip_leading_blank_lines
from mhnb.core.asked.startinput import is_positive_seconds
from mhnb.core.life.events import CellRequest
from mhnb.core.ranks import resolve_ranks
from mhnb.errors import InvalidRequest

__all__ = ["build_cell_request", "check_guard"]

_GUARDS = ("lockstep", "parity", "off")


def check_guard(guard: str) -> str:
    """Return the guard.

    Raises:
        InvalidRequest: the guard does not exist.

    >>> check_guard("parity")
    'parity'
    """
    if guard not in _GUARDS:
        raise InvalidRequest(f"--guard {guard!r}: choose lockstep, parity or off")
    return guard


def build_cell_request(
    source: str,
    process_count: int,
    *,
    guard: str,
    ranks: str | Sequence[int] | None = None,
    timeout_s: float | None = None,
    on_snapshot: object = None,
) -> CellRequest:
    r"""Check the arguments of a cell and return its request.

    Raises:
        InvalidRequest: the source is not text, a rank does not exist, the guard is unknown, or the time limit is not valid.

    >>> build_cell_request("\nx = 1", 4, guard="lockstep").source
    'x = 1'
    """
    if not isinstance(source, str):
        raise InvalidRequest(f"a cell is text, and this is {type(source).__name__}: {source!r:.80}")
    if on_snapshot is not None and not callable(on_snapshot):
        # An error after the start would leave a cell that no caller follows.
        raise InvalidRequest(f"on_snapshot={on_snapshot!r:.80}: give a function of one argument, the result so far")
    chosen = resolve_ranks(ranks, process_count)
    if timeout_s is not None and not is_positive_seconds(timeout_s):
        raise InvalidRequest(f"--timeout {timeout_s!r}: give a number of seconds above 0")
    return CellRequest(strip_leading_blank_lines(source), chosen, check_guard(guard), timeout_s)
