"""What a user asks of a cell, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.events import CellRequest
from mhnb.core.ranks import choose_ranks
from mhnb.core.select import drop_blank_head
from mhnb.errors import InvalidRequest

__all__ = ["check_guard", "make_request"]

_GUARDS = ("lockstep", "parity", "off")


def check_guard(guard: str) -> str:
    """Return the guard.

    Raises:
        InvalidRequest: there is none of that name.

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
) -> CellRequest:
    r"""Check what is asked of a cell.

    Raises:
        InvalidRequest: no text, a rank that is not there, an unknown guard, a time limit that is none.

    >>> make_request("\nx = 1", 4, guard="lockstep").source
    'x = 1'
    """
    if not isinstance(source, str):
        raise InvalidRequest(f"a cell is text, and this is {type(source).__name__}: {source!r:.80}")
    chosen = choose_ranks(ranks, process_count)
    if timeout_s is not None and not timeout_s > 0:
        raise InvalidRequest(f"--timeout {timeout_s!r}: give a number of seconds above 0")
    return CellRequest(drop_blank_head(source), chosen, check_guard(guard), timeout_s)
