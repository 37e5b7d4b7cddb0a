"""Build the request for a cell, and check it before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.asked.select import drop_blank_head
from mhnb.core.asked.startinput import is_seconds
from mhnb.core.life.events import CellRequest
from mhnb.core.ranks import choose_ranks
from mhnb.errors import InvalidRequest

__all__ = ["check_guard", "make_request"]

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


def make_request(
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

    >>> make_request("\nx = 1", 4, guard="lockstep").source
    'x = 1'
    """
    if not isinstance(source, str):
        raise InvalidRequest(f"a cell is text, and this is {type(source).__name__}: {source!r:.80}")
    if on_snapshot is not None and not callable(on_snapshot):
        # An error after the start would leave a cell that no caller follows.
        raise InvalidRequest(f"on_snapshot={on_snapshot!r:.80}: give a function of one argument, the result so far")
    chosen = choose_ranks(ranks, process_count)
    if timeout_s is not None and not is_seconds(timeout_s):
        raise InvalidRequest(f"--timeout {timeout_s!r}: give a number of seconds above 0")
    return CellRequest(drop_blank_head(source), chosen, check_guard(guard), timeout_s)
